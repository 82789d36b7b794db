"""The filter of system calls, run by an interpreter of classic BPF, and its numbers."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from surefoot.sandbox.inside.seccomp import NAMESPACE_FLAGS, REFUSED, filter_program

X86_64, I386 = 0xC000003E, 0x40000003
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


def decide(number: int, *arguments: int, architecture: int = X86_64) -> int:
    """What the filter returns for ``struct seccomp_data``."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    instructions = list(struct.iter_unpack("=HBBI", filter_program()))
    accumulator = at = 0
    while True:
        code, if_true, if_false, value = instructions[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            return value
        elif code == 0x54:
            accumulator &= value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value}[code]
            at += if_true if holds else if_false


def test_each_call_has_its_decision():
    assert {decide(number) for number in REFUSED.values()} == {EPERM}
    for allowed in (0, 1, 9, 39, 57, 59, 61, 53, 228):  # read … socketpair, clock_gettime
        assert decide(allowed) == ALLOW
    assert decide(435) == ENOSYS  # clone3
    assert decide(457) == decide(458) == decide(463) == decide(5000) == ENOSYS  # statmount, listmount …
    assert decide(0x40000000) == decide(0x40000000 + 59) == KILL
    assert decide(0, architecture=I386) == KILL


def test_clone_makes_processes_and_threads_but_no_namespaces():
    assert decide(56, 17) == decide(56, 0x3D0F00) == ALLOW
    for bit in range(32):
        assert decide(56, 1 << bit) == (EPERM if NAMESPACE_FLAGS & 1 << bit else ALLOW)


def test_maps_are_private_or_of_a_file():
    for flags in range(1 << 7):
        shared_anonymous = bool(flags & 1 and flags & 0x20)
        assert decide(9, 0, 4096, 3, flags) == (EPERM if shared_anonymous else ALLOW)
        assert decide(9, 0, 4096, 3, flags | 0x8000) == decide(9, 0, 4096, 3, flags)  # MAP_POPULATE


def test_socket_buffers_stay_small():
    refused = {option for option in range(100) if decide(54, 3, 1, option) == EPERM}
    assert refused == {7, 32}  # SO_SNDBUF, SO_SNDBUFFORCE


def test_numbers_are_those_of_the_kernel():
    if not HEADER.exists():
        pytest.skip("the kernel's header is not installed (Debian: apt-get install linux-libc-dev)")
    known = dict(re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text()))
    assert {name: known.get(name) for name in REFUSED} == {name: str(n) for name, n in REFUSED.items()}
