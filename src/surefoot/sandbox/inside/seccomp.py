"""A filter of system calls as classic BPF (``man 2 seccomp``), for x86_64.

It refuses calls that programs do not need and calls that reach into the kernel: other processes, mounts,
namespaces, sockets, keys, kernel modules, asynchronous rings, watches and locks of files that the host
shares. It also refuses what takes memory that belongs to no process, which the memory limit would not see:
shared memory without a file, larger socket buffers, pages given to a pipe. Calls of other architectures end
the process.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

REFUSED = {
    "accept": 43, "accept4": 288, "acct": 163, "add_key": 248, "adjtimex": 159, "bind": 49, "bpf": 321,
    "chroot": 161, "clock_adjtime": 305, "clock_settime": 227, "connect": 42, "delete_module": 176,
    "fanotify_init": 300, "fanotify_mark": 301, "finit_module": 313, "flock": 73, "fsconfig": 431,
    "fsmount": 432,
    "fsopen": 430, "fspick": 433, "get_mempolicy": 239, "init_module": 175, "inotify_add_watch": 254,
    "inotify_init": 253, "inotify_init1": 294, "io_setup": 206,
    "io_submit": 209, "io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425,
    "ioperm": 173, "iopl": 172, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250,
    "listen": 50, "lookup_dcookie": 212, "mbind": 237, "memfd_create": 319, "memfd_secret": 447,
    "migrate_pages": 256, "modify_ldt": 154, "mount": 165, "mount_setattr": 442, "move_mount": 429,
    "move_pages": 279, "mq_notify": 244, "mq_open": 240, "mq_timedreceive": 243, "mq_timedsend": 242,
    "mq_unlink": 241, "msgctl": 71, "msgget": 68, "msgrcv": 70, "msgsnd": 69, "name_to_handle_at": 303,
    "open_by_handle_at": 304, "open_tree": 428, "perf_event_open": 298, "personality": 135,
    "pidfd_getfd": 438, "pivot_root": 155, "process_madvise": 440, "process_mrelease": 448,
    "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101, "quotactl": 179,
    "quotactl_fd": 443, "reboot": 169, "request_key": 249, "seccomp": 317, "semctl": 66, "semget": 64,
    "semop": 65, "semtimedop": 220, "set_mempolicy": 238, "set_mempolicy_home_node": 450,
    "setdomainname": 171, "sethostname": 170, "setns": 308, "settimeofday": 164, "shmat": 30,
    "shmctl": 31, "shmdt": 67, "shmget": 29, "socket": 41, "swapoff": 168, "swapon": 167, "sysfs": 139,
    "syslog": 103, "umount2": 166, "unshare": 272, "uselib": 134, "userfaultfd": 323, "ustat": 136,
    "vhangup": 153, "vmsplice": 278,
}  # fmt: skip
"""System calls that fail with EPERM, with their numbers on x86_64."""

NAMESPACE_FLAGS = 0x7E020080
"""``CLONE_NEW*`` of all kinds: mount, cgroup, UTS, IPC, user, PID, network and time."""

_CLONE, _CLONE3, _X32_BIT = 56, 435, 0x40000000
_MMAP, _SETSOCKOPT = 9, 54
_SHARED_ANONYMOUS = 0x21
"""``MAP_SHARED | MAP_ANONYMOUS``."""
_SO_SNDBUF, _SO_SNDBUFFORCE = 7, 32
_LAST_KNOWN = 456
"""Newer calls do not exist in the box: ``statmount`` and ``listmount`` tell the host's paths, and others are
unreviewed."""
_AUDIT_ARCH_X86_64 = 0xC000003E
_LOAD, _AND, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in ``struct seccomp_data``; each argument has eight bytes, the low half first."""
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2


def filter_program() -> bytes:
    """The instructions, eight bytes each.

    Raises:
        OSError: on another machine than x86_64.
    """
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, f"the filter of system calls knows x86_64, not {platform.machine()}")

    def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    def unless(code: int, value: int, action: int) -> bytes:
        """Return ``action`` where the comparison holds, else go on."""
        return instruction(code, value, 0, 1) + instruction(_RETURN, action)

    def of(number: int, argument: int, *instructions: bytes) -> bytes:
        """Do ``instructions`` with an argument of the call ``number``, then allow it; skip other calls."""
        body = instruction(_LOAD, _ARGUMENTS + 8 * argument) + b"".join(instructions)
        body += instruction(_RETURN, _ALLOW)
        return instruction(_JUMP_EQUAL, number, 0, len(body) // 8) + body

    refuse = _ERRNO | errno.EPERM
    return b"".join(
        [
            instruction(_LOAD, _ARCHITECTURE),
            instruction(_JUMP_EQUAL, _AUDIT_ARCH_X86_64, 1, 0),
            instruction(_RETURN, _KILL),
            instruction(_LOAD, _NUMBER),
            unless(_JUMP_GREATER_EQUAL, _X32_BIT, _KILL),
            unless(_JUMP_GREATER_EQUAL, _LAST_KNOWN + 1, _ERRNO | errno.ENOSYS),
            # Its flags lie in memory, which a filter cannot read; without it the C library uses clone.
            unless(_JUMP_EQUAL, _CLONE3, _ERRNO | errno.ENOSYS),
            *(unless(_JUMP_EQUAL, number, refuse) for number in sorted(REFUSED.values())),
            of(_CLONE, 0, unless(_JUMP_ANY_BIT, NAMESPACE_FLAGS, refuse)),
            of(
                _MMAP,
                3,
                instruction(_AND, _SHARED_ANONYMOUS),
                unless(_JUMP_EQUAL, _SHARED_ANONYMOUS, refuse),
            ),
            of(
                _SETSOCKOPT,
                2,
                unless(_JUMP_EQUAL, _SO_SNDBUF, refuse),
                unless(_JUMP_EQUAL, _SO_SNDBUFFORCE, refuse),
            ),
            instruction(_RETURN, _ALLOW),
        ]
    )


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install(libc: ctypes.CDLL, program: bytes) -> None:
    """Put this process and all that it starts under the filter, for good.

    Raises:
        OSError: the kernel refuses the filter.
    """
    described = _Filter(len(program) // 8, program)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(described), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "the kernel refuses the filter of system calls")
