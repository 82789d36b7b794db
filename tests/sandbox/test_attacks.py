"""Programs that try to get out, to reach others, to use more than they may, or to pass without being right.

Each says what it got by what it prints: the name of the error that it met, or ``GOT``. Nothing that they
want may be had: files, secrets, processes and ports of this machine are watched, and honest programs run
right afterwards.
"""

# ruff: noqa: E501 - programs on a line
from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from surefoot.errors import SandboxError
from surefoot.sandbox import (
    Ending,
    Limits,
    Program,
    PythonTask,
    Sandbox,
    TaskVerdict,
    grade_python,
    open_sandbox,
)

MIB = 1 << 20
SECRET = "secret-of-the-host-5d1f"
EXPECTED = "expected-answer-81723"
LIMITS = Limits(
    wall_s=5, cpu_s=5, memory_bytes=256 * MIB, processes=8, disk_bytes=8 * MIB, file_bytes=4 * MIB
)
SHORT = LIMITS.model_copy(update={"wall_s": 0.5})

PRELUDE = """
import os, sys, ctypes, errno, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    print(errno.errorcode[ctypes.get_errno()] if result < 0 else "GOT")
def attempt(*actions):
    for action in actions:
        try:
            got = action()
        except Exception as problem:
            number = getattr(problem, "errno", None)
            print(errno.errorcode.get(number, type(problem).__name__))
        else:
            print("GOT", got)
"""


@dataclass
class Host:
    """What the attacks want, on this machine."""

    directory: Path
    victim: subprocess.Popen[bytes]
    server: socket.socket
    abstract: socket.socket

    def __post_init__(self) -> None:
        (self.directory / "secret").write_text(SECRET)

    def fill(self, text: str) -> str:
        """``HOST``, ``VICTIM`` and ``PORT`` in a program's text."""
        port = self.server.getsockname()[1]
        for name, value in {"HOST": self.directory, "VICTIM": self.victim.pid, "PORT": port}.items():
            text = text.replace(name, str(value))
        return text


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Iterator[Host]:
    with (
        subprocess.Popen(["sleep", "600"]) as victim,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(f"\0surefoot-test-{os.getpid()}")
        abstract.listen()
        os.environ["SUREFOOT_TEST_SECRET"] = SECRET
        try:
            yield Host(tmp_path_factory.mktemp("host"), victim, server, abstract)
        finally:
            del os.environ["SUREFOOT_TEST_SECRET"]
            victim.kill()


@dataclass(frozen=True)
class Attack:
    """A program, and what may be its end: an ending other than ``exited``, or words that it prints."""

    text: str
    prints: tuple[str, ...] = ()
    ending: tuple[Ending, ...] = (Ending.EXITED,)
    limits: Limits = LIMITS
    argv: tuple[str, ...] = ("python", "main.py")
    files: dict[str, bytes] = field(default_factory=dict)


def refused(number: int, *arguments: str, name: str = "EPERM") -> Attack:
    return Attack(f"call({', '.join(map(str, (number, *arguments)))})", (name,))


READ_ONLY = ("EROFS", "EACCES")
PROGRAMS = {
    # Files of the host
    "a secret by its path": Attack("attempt(lambda: open('HOST/secret').read())", ("ENOENT",)),
    "a file written on the host": Attack("attempt(lambda: open('HOST/written', 'w'))", ("ENOENT",)),
    "passwords": Attack(
        "attempt(lambda: open('/etc/passwd').read(), lambda: open('/etc/shadow').read())", ("ENOENT",) * 2
    ),
    "the home directory and keys": Attack(
        "attempt(lambda: os.listdir('/home'), lambda: open('/root/.ssh/id_rsa'), lambda: os.listdir('/work'))",
        ("ENOENT",) * 3,
    ),
    "a system program replaced": Attack("attempt(lambda: open('/usr/bin/env', 'ab'))", READ_ONLY),
    "the standard library poisoned": Attack("attempt(lambda: open(os.__file__, 'a'))", READ_ONLY),
    "the judge edited": Attack("attempt(lambda: open('/box/inside/judge.py', 'a'))", READ_ONLY),
    "a file left in the root": Attack(
        "attempt(lambda: open('/x', 'w'), lambda: os.mkdir('/box/x'))", READ_ONLY
    ),
    "symbolic links out": Attack(
        "os.symlink('HOST/secret', 'a'); os.symlink('../' * 20 + 'etc/passwd', 'b')\n"
        "attempt(lambda: open('a').read(), lambda: open('b').read())",
        ("ENOENT",) * 2,
    ),
    "hard links": Attack("attempt(lambda: os.link('/usr/bin/env', 'x'))", ("EXDEV", "EPERM")),
    "the root of another process": Attack(
        "attempt(lambda: os.listdir('/proc/self/root'), lambda: os.listdir('/proc/1/root/etc'))",
        ("ENOENT",) * 2,
    ),
    "memory by /proc": Attack(
        "attempt(lambda: open('/proc/self/mem', 'rb+'), lambda: open('/proc/1/environ').read())",
        ("ENOENT",) * 2,
    ),
    "kernel settings": Attack(
        "attempt(lambda: open('/proc/sys/kernel/core_pattern', 'w'), lambda: os.listdir('/sys'))",
        ("ENOENT",) * 2,
    ),
    "/proc listed": Attack("print(os.listdir('/proc'))", ("[]",)),
    "devices": Attack("attempt(lambda: open('/dev/mem'), lambda: open('/dev/kmsg'))", ("ENOENT",) * 2),
    "a device made": Attack("attempt(lambda: os.mknod('x', 0o020666, os.makedev(1, 1)))", ("EPERM",)),
    "a terminal": Attack("attempt(lambda: open('/dev/tty'), lambda: open('/dev/ptmx'))", ("ENOENT",) * 2),
    "a file by its handle": refused(304, "-100", "b'x' * 64", "0"),
    "chroot": Attack("attempt(lambda: os.chroot('/tmp'))", ("EPERM",)),
    "mount": refused(165, "b'none'", "b'/tmp'", "b'tmpfs'", "0", "None"),
    "/proc uncovered": refused(166, "b'/proc'", "2"),
    "the new mount calls": Attack("call(430, b'proc', 0); call(428, -100, b'/', 1)", ("EPERM",) * 2),
    "pivot_root": refused(155, "b'/'", "b'/'"),
    "programs with the rights of root": Attack(
        "done = __import__('subprocess').run(['mount', '-t', 'tmpfs', 'x', '/tmp'], capture_output=True)\n"
        "print('refused' if done.returncode else 'GOT')",
        ("refused",),
    ),
    "open descriptors": Attack(
        "import os\n"
        "def is_open(fd):\n  try: os.fstat(fd); return True\n  except OSError: return False\n"
        "print([fd for fd in range(4096) if is_open(fd)])",
        ("[0, 1, 2]",),
    ),
    "secrets in the environment": Attack(
        "print('GOT' if any('secret' in v for v in os.environ.values()) else sorted(os.environ)[0])",
        ("HOME",),
    ),
    "files of the program before": Attack("print(os.listdir('/tmp'))", ("['main.py']",)),
    # Other processes
    "a process of the host killed": Attack("attempt(lambda: os.kill(VICTIM, 9))", ("ESRCH",)),
    "every process killed": Attack("attempt(lambda: os.kill(-1, 9))", ("ESRCH",)),
    "the parent killed": Attack("print(os.getppid()); attempt(lambda: os.kill(2, 9))", ("0", "ESRCH")),
    "ptrace": refused(101, "16", "VICTIM", "0", "0"),
    "memory of another process": refused(310, "VICTIM", "None", "0", "None", "0", "0"),
    "a descriptor of another process": refused(438, "3", "0", "0"),
    "a process by its descriptor": Attack("attempt(lambda: os.pidfd_open(VICTIM))", ("ESRCH",)),
    "a daemon that stays": Attack(
        "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    __import__('time').sleep(600)\nprint('left')",
        ("left",),
    ),
    "a process that stops itself": Attack(
        "import signal, time\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(60)",
        ending=(Ending.TIMEOUT,),
        limits=SHORT,
    ),
    "signals ignored": Attack(
        "import signal, time\nfor n in range(1, 64):\n  try: signal.signal(n, signal.SIG_IGN)\n  except OSError: pass\n"
        "while True: time.sleep(1)",
        ending=(Ending.TIMEOUT,),
        limits=SHORT,
    ),
    # Rights
    "limits raised": Attack(
        "import resource as r\n"
        "attempt(lambda: r.setrlimit(r.RLIMIT_AS, (1 << 40, 1 << 40)), lambda: r.setrlimit(r.RLIMIT_NPROC, (999, 999)))",
        ("ValueError",) * 2,
    ),
    "root again": Attack("attempt(lambda: os.setuid(0), lambda: os.setgid(0))", ("EINVAL",) * 2),
    "capabilities raised": Attack(
        "import struct\n"
        "call(126, struct.pack('=Ii', 0x20080522, 0), struct.pack('=6I', 1 << 21, 1 << 21, 0, 0, 0, 0))",
        ("EPERM",),
    ),
    "priority": Attack(
        "attempt(lambda: os.nice(-5), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))",
        ("EPERM", "EACCES"),
    ),
    "a user namespace": refused(272, "0x10000000"),
    "a user namespace by clone": refused(56, "0x10000000 | 17", "0", "0", "0", "0"),
    "clone3": refused(435, "b'\\0' * 88", "88", name="ENOSYS"),
    "the namespace of another": refused(308, "0", "0"),
    "system calls of the x32 interface": Attack("libc.syscall(0x40000000 + 39)", ending=(Ending.CRASHED,)),
    "system calls of 32 bits": Attack(
        "import mmap\nm = mmap.mmap(-1, 4096, prot=7, flags=0x22)\nm.write(bytes.fromhex('b814000000cd80c3'))\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()\nprint('GOT')",
        ending=(Ending.CRASHED,),
    ),
    "the filter of system calls replaced": refused(317, "1", "0", "None"),
    # The kernel
    "bpf": refused(321, "0", "b'\\0' * 64", "64"),
    "perf_event_open": refused(298, "b'\\0' * 112", "0", "-1", "-1", "0"),
    "userfaultfd": refused(323, "0"),
    "io_uring": refused(425, "8", "b'\\0' * 120"),
    "keys of the kernel": Attack(
        "call(250, 0, -3, 1); call(248, b'user', b'x', b'y', 1, -3)", ("EPERM",) * 2
    ),
    "kernel modules": Attack(
        "call(175, b'', 0, b''); call(313, 0, b'', 0); call(246, 0, 0, 0, 0)", ("EPERM",) * 3
    ),
    "personality": refused(135, "0x0040000"),
    "the clock and the name of the host": Attack(
        "call(164, b'\\0' * 16, None); call(170, b'x', 1); call(169, 0xFEE1DEAD, 672274793, 0, 0)",
        ("EPERM",) * 3,
    ),
    "the kernel's log": refused(103, "3", "b'\\0' * 64", "64"),
    "shared memory between programs": Attack(
        "call(29, 0x5EC, 4096, 0o1666); call(68, 0x5EC, 0o1666); call(240, b'/x', 66, 0o666, None)",
        ("EPERM",) * 3,
    ),
    "memory without a limit": refused(319, "b'x'", "0"),
    # The network
    **{
        f"a socket of the family {family}": Attack(
            f"attempt(lambda: socket.socket(socket.{family}, socket.SOCK_{kind}))", ("EPERM",)
        )
        for family, kind in (
            ("AF_INET", "STREAM"),
            ("AF_INET6", "DGRAM"),
            ("AF_UNIX", "STREAM"),
            ("AF_NETLINK", "RAW"),
            ("AF_PACKET", "RAW"),
            ("AF_ALG", "SEQPACKET"),
            ("AF_VSOCK", "STREAM"),
        )
    },
    "a port of this machine": Attack(
        "attempt(lambda: socket.create_connection(('127.0.0.1', PORT), 1))", ("EPERM",)
    ),
    "a name in the DNS": Attack("attempt(lambda: socket.gethostbyname('example.com'))", ("gaierror", "-")),
    "the network by the shell": Attack(
        "",
        argv=("bash", "-c", "(exec 3<>/dev/tcp/127.0.0.1/PORT) 2>/dev/null && echo GOT || echo refused"),
        prints=("refused",),
    ),
    # More than it may
    "fork bomb": Attack(
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        ending=(Ending.TIMEOUT,),
        limits=SHORT,
    ),
    "fork bomb of the shell": Attack(
        "",
        argv=("bash", "-c", "f() { f | f & }; f; sleep 60"),
        ending=(Ending.TIMEOUT, Ending.EXITED),
        limits=SHORT,
    ),
    "thread bomb": Attack(
        "import threading as t\nattempt(lambda: [t.Thread(target=t.Event().wait, daemon=True).start() for _ in range(99)])",
        ("RuntimeError",),
    ),
    "memory at once": Attack("x = bytearray(1 << 33)", ending=(Ending.MEMORY,)),
    "memory bit by bit": Attack("x = []\nwhile True: x.append(bytes(4096))", ending=(Ending.MEMORY,)),
    "memory in shared maps": Attack(
        "import mmap\nattempt(lambda: mmap.mmap(-1, 4096), lambda: mmap.mmap(-1, 4096, flags=0x8021))\n"
        "m = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)",
        ("EPERM",),
    ),
    "memory in shared maps of a device": Attack(
        "import mmap\nattempt(lambda: mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096), lambda: mmap.mmap(os.open('/dev/full', os.O_RDWR), 4096))",
        ("ENODEV",),
    ),
    "memory in a pipe": Attack(
        "r, w = os.pipe()\nbuffer = ctypes.create_string_buffer(4096)\n"
        "vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 4096)\ncall(278, w, vector, 1, 0)",
        ("EPERM",),
    ),
    "memory in sockets": Attack(
        "a, b = socket.socketpair()\nattempt(*(lambda o=o: a.setsockopt(socket.SOL_SOCKET, o, 1 << 24) for o in (7, 32)))",
        ("EPERM",),
    ),
    "memory of many processes": Attack(
        "import os, time\nfor _ in range(5):\n  if os.fork() == 0:\n    x = b'1' * (90 << 20)\n    time.sleep(9)\nos.wait()",
        ending=(Ending.MEMORY,),
    ),
    "memory that many processes share": Attack(
        "import mmap, time\nfor i in range(3):\n  if os.fork() == 0:\n    f = open(str(i), 'w+b')\n    f.truncate(110 << 20)\n"
        "    m = mmap.mmap(f.fileno(), 0)\n    if os.fork() == 0: time.sleep(9)\n"
        "    for at in range(0, 110 << 20, 4096): m[at] = 1\n    time.sleep(9)\nos.wait()",
        ending=(Ending.MEMORY,),
        limits=LIMITS.model_copy(update={"disk_bytes": 512 * MIB, "file_bytes": 128 * MIB}),
    ),
    "the host's mounts": Attack("call(458, 0, 0, 0, 0)\ncall(457, 0, 0, 0, 0)", ("ENOSYS",)),
    "locks and watches of the host's files": Attack(
        "call(73, os.open(sys.executable, 0), 2)\ncall(253)\ncall(294, 0)", ("EPERM",)
    ),
    "a full disk": Attack(
        "attempt(lambda: [open(str(i), 'wb').write(bytes(1 << 20)) for i in range(99)])", ("ENOSPC",)
    ),
    "a file that is too large": Attack("attempt(lambda: os.truncate('main.py', 1 << 40))", ("EFBIG",)),
    "files without end": Attack("attempt(lambda: [open(str(i), 'w') for i in range(999)])", ("EMFILE",)),
    "names without end": Attack("attempt(lambda: [os.mkdir(str(i)) for i in range(99999)])", ("ENOSPC",)),
    "output flood": Attack("while True: os.write(1, b'x' * 65536)", ending=(Ending.OUTPUT,)),
    "error flood": Attack("while True: os.write(2, b'x' * 65536)", ending=(Ending.OUTPUT,)),
    "busy loop": Attack("while True: pass", ending=(Ending.TIMEOUT,), limits=SHORT),
    "a regular expression": Attack(
        "import re; re.match('(a+)+b', 'a' * 99)", ending=(Ending.TIMEOUT,), limits=SHORT
    ),
    "stack overflow": Attack(
        "sys.setrecursionlimit(1 << 30)\nclass A:\n  def __getattribute__(s, n): return getattr(s, n)\nA().x",
        ending=(Ending.CRASHED, Ending.MEMORY),
    ),
    "deep source": Attack(
        "attempt(lambda: eval('(' * 99999))", ("SyntaxError", "MemoryError", "RecursionError")
    ),
}


@pytest.fixture(scope="module")
def results(sandbox: Sandbox, host: Host) -> dict[str, object]:
    programs = [
        Program(
            argv=tuple(host.fill(word) for word in attack.argv),
            files={"main.py": host.fill(PRELUDE + attack.text).encode()},
            limits=attack.limits,
        )
        for attack in PROGRAMS.values()
    ]
    return dict(zip(PROGRAMS, sandbox.run(programs), strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gets_nothing(name, results):
    attack, result = PROGRAMS[name], results[name]
    assert b"GOT" not in result.stdout
    assert result.ending in attack.ending, (result.reason, result.stderr[-500:])
    if attack.prints:
        lines = [
            line.split()[0] if not line.startswith("[") else line
            for line in result.stdout.decode().splitlines()
        ]
        assert lines, result.stderr[-500:]
        assert set(lines) <= set(attack.prints), result.stderr[-500:]


def test_the_host_is_as_it_was(sandbox, results, host):
    assert host.victim.poll() is None
    assert {path.name for path in host.directory.iterdir()} == {"secret"}
    for server in (host.server, host.abstract):
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert not any(SECRET.encode() in result.stdout + result.stderr for result in results.values())


def test_no_process_is_left(sandbox, results):
    """bubblewrap, its first process and the zygote remain, whatever a program left running."""
    deadline = time.monotonic() + 5
    while len(below := descendants(sandbox._box.process.pid)) > 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(below) == 2


def descendants(root: int) -> list[int]:
    found = []
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            parent = int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == root:
            found += [pid, *descendants(pid)]
    return found


TASK = PythonTask.from_asserts(["f"], [f"assert f(1) == {EXPECTED!r}", f"assert f(2) == {EXPECTED[::-1]!r}"])
FORGED = '[["assert 1", "passed", ""], ["assert 2", "passed", ""]]'
FRAME = "import struct, json\ndef frame(v):\n  t = json.dumps(v).encode()\n  return struct.pack('<I', len(t)) + t\n"
VERDICTS = {
    "a value that equals all": "class A:\n  def __eq__(s, o): return True\ndef f(x): return A()",
    "a number that equals all": "class A(int):\n  def __eq__(s, o): return True\n  __hash__ = None\ndef f(x): return A(3)",
    "a text that equals all": "class A(str):\n  def __eq__(s, o): return True\n  __hash__ = None\ndef f(x): return A('x')",
    "a list that lies": "class A(list):\n  def __eq__(s, o): return True\n  def __len__(s): return 9\ndef f(x): return A()",
    "an exit while loading": "import sys; sys.exit(0)",
    "a hard exit while loading": "import os; os._exit(0)",
    "an exit in a call": "import sys\ndef f(x): sys.exit(0)",
    "a hard exit in a call": "import os\ndef f(x): os._exit(0)",
    "another program in its place": "import os\ndef f(x): os.execv('/usr/bin/true', ['true'])",
    "a forged verdict on standard error": f"import os\nos.write(2, b'{FORGED}')\ndef f(x): os.write(2, b'{FORGED}')",
    "a forged verdict on every descriptor": f"import os\ndef f(x):\n  for fd in range(256):\n"
    f"    try: os.write(fd, b'{FORGED}')\n    except OSError: pass",
    "forged answers sent early": f"{FRAME}import os\nfor fd in range(3, 64):\n"
    "  try: os.write(fd, frame(['loaded']) + frame(['returned', 'x']) * 9)\n  except OSError: pass\ndef f(x): return 1",
    "values of no type": f"{FRAME}import os\nfor fd in range(3, 64):\n"
    "  try: os.write(fd, frame({'eval': 'exit(0)'}))\n  except OSError: pass\ndef f(x): return 1",
    "a message without end": "import os, time\nfor fd in range(3, 64):\n  try: os.write(fd, b'\\xff' * 9)\n"
    "  except OSError: pass\ndef f(x): return 1",
    "half a message": "import os, time\nfor fd in range(3, 64):\n  try: os.write(fd, b'\\x09')\n"
    "  except OSError: pass\ntime.sleep(60)",
    "the tests by frames": "import sys\ndef f(x):\n  frame = sys._getframe()\n  while frame:\n"
    "    for v in [*frame.f_locals.values(), *frame.f_code.co_consts]:\n"
    "      if isinstance(v, str) and v.startswith('expected') and len(v) > 8: return v\n    frame = frame.f_back",
    "the tests by the garbage collector": "import gc\ndef f(x):\n  for o in gc.get_objects():\n"
    "    for v in gc.get_referents(o):\n      if isinstance(v, str) and 'answer-8' in v: return v[v.index('expected'):][:21]",
    "the tests by the file system": "import os\ndef f(x):\n  for where, _, names in os.walk('/tmp'):\n    for n in names:\n"
    "      t = open(os.path.join(where, n)).read()\n      if 'assert f' + '(1)' in t: return t.split(\"'\")[1]",
    "patched built-ins": "import builtins\nbuiltins.AssertionError = type('A', (BaseException,), {})\n"
    "builtins.compile = builtins.exec = lambda *a, **k: None\nbuiltins.isinstance = lambda *a: True\ndef f(x): return 1",
    "an import hook": "import sys\nclass H:\n  def find_spec(s, *a): return None\nsys.meta_path.insert(0, H())\n"
    "sys.modules['json'] = None\ndef f(x): return 1",
    "a patched judge": "import sys\nj = sys.modules['inside.judge']\nj.run_test = lambda *a: ('passed', '')\n"
    "sys.modules['inside.callee'].answer = lambda c, *a: c.send(['passed'])\ndef f(x): return 1",
    "a patched codec": "import sys\nsys.modules['inside.wire'].encode = lambda v, d=0: {'passed': 'passed'}\ndef f(x): return 1",
    "a killed judge": "import os, signal\ndef f(x):\n  for pid in range(-1, 300):\n"
    "    try: os.kill(pid, signal.SIGKILL)\n    except OSError: pass",
    "a value that runs when it is read": "class A:\n  def __reduce__(s): return exec, ('import os; os._exit(0)',)\n"
    "def f(x): return A()",
    "a generator without end": "def f(x):\n  while True: yield 1",
    "a deep value": "def f(x):\n  v = []\n  for _ in range(10**5): v = [v]\n  return v",
    "a value that holds itself": "def f(x):\n  v = []\n  v.append(v)\n  return v",
    "a huge value": "def f(x): return 'x' * (20 << 20)",
    "an exception with a text that fails": "class E(Exception):\n  def __str__(s): 1 / 0\ndef f(x): raise E",
    "an exception that ends the judge": "class SystemExit(Exception): pass\ndef f(x): raise SystemExit(0)",
    "an exception of the judge's own name": "class _Stuck(BaseException): pass\ndef f(x): raise _Stuck('passed', '')",
    "an interrupt": "def f(x): raise KeyboardInterrupt",
    "too long, then right": f"import time\ndef f(x): time.sleep(30); return {EXPECTED!r}",
    "two processes that answer": "import os\ndef f(x): os.fork(); return 'x'",
    "a trace function": "import sys\nsys.settrace(lambda *a: None); sys.setprofile(lambda *a: None)\ndef f(x): return 1",
    "names of the tests": "def check(c): pass\ndef candidate(*a): return 1\n_check = check\ndef f(x): return candidate",
    "numbers changed in memory": "import ctypes\nctypes.memset(id(257) + 16, 0, 8)\ndef f(x): return 257",
    "a handler at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): return 1",
    "no function at all": "f = 3",
    "a text that is no source": "\0def f(x): return 1",
}


@pytest.fixture(scope="module")
def verdicts(sandbox: Sandbox, results: object) -> dict[str, TaskVerdict]:
    limits = LIMITS.model_copy(update={"wall_s": 1.5})
    graded = grade_python(sandbox, [(text, TASK) for text in VERDICTS.values()], limits=limits)
    return dict(zip(VERDICTS, graded, strict=True))


@pytest.mark.parametrize("name", VERDICTS)
def test_a_wrong_program_does_not_pass(name, verdicts):
    assert verdicts[name].passed is False, verdicts[name].reason
    assert all(test.outcome != "passed" for test in verdicts[name].tests)


def test_honest_programs_run_right_afterwards(sandbox, verdicts):
    honest = f"def f(x): return {EXPECTED!r} if x == 1 else {EXPECTED[::-1]!r}"
    assert [v.passed for v in grade_python(sandbox, [(honest, TASK)] * 8)] == [True] * 8
    (result,) = sandbox.run([Program(argv=("python", "-c", "print(sum(range(10)))"), limits=LIMITS)])
    assert (result.ending, result.stdout) == (Ending.EXITED, b"45\n")


def test_a_program_does_not_find_the_one_before(sandbox):
    """The warm interpreter never reads a program, so none is in the memory that the next one starts with."""
    hidden = "hidden-7f3a"
    search = (
        "import gc\nh = ''.join(['hidden', '-7f3a'])\nprint([v for o in gc.get_objects() for v in gc.get_referents(o) "
        "if isinstance(v, str) and h in v and v is not h])"
    )
    first = Program(argv=("python", "main.py"), files={"main.py": f"x = {hidden!r}".encode()})
    second = Program(argv=("python", "main.py"), files={"main.py": search.encode()})
    assert sandbox.run([first, first, second])[2].stdout == b"[]\n"
    own = Program(argv=("python", "main.py"), files={"main.py": f"x = {hidden!r}\n{search}".encode()})
    assert hidden.encode() in sandbox.run([own])[0].stdout


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_the_same_in_containers(engine, host):
    """An image has files of its own, such as ``/etc/passwd``, so only what is the host's is looked for."""
    try:
        containers = open_sandbox(engine)
    except SandboxError as missing:
        pytest.skip(str(missing))
    programs = [
        Program(
            argv=tuple(host.fill(word) for word in attack.argv),
            files={"main.py": host.fill(PRELUDE + attack.text).encode()},
            limits=attack.limits,
        )
        for attack in PROGRAMS.values()
    ]
    results = containers.run(programs)
    assert not any(SECRET.encode() in result.stdout + result.stderr for result in results)
    assert not any(result.ending is Ending.SANDBOX_FAILURE for result in results)
    assert host.victim.poll() is None
    assert {path.name for path in host.directory.iterdir()} == {"secret"}
    limits = LIMITS.model_copy(update={"wall_s": 3})
    graded = grade_python(containers, [(text, TASK) for text in VERDICTS.values()], limits=limits)
    assert {name: v.passed for name, v in zip(VERDICTS, graded, strict=True)} == dict.fromkeys(
        VERDICTS, False
    )


def test_the_list_is_long():
    assert len(PROGRAMS) + len(VERDICTS) >= 60
