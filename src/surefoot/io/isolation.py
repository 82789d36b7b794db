"""Shuts a process off from files and the network, as far as the system lets it.

Linux alone. Landlock refuses to open files, but to read those of packages that are loaded (they import more
of themselves later), and from Linux 6.7 on to connect or bind TCP. A user and network namespace of its own
has no network at all, where the system lets the process make one. What is open already stays open.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of Landlock's system calls, equal on all architectures that have them."""
_ABI = 1
"""Flag that asks for the version of Landlock."""
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Access rights to files that a version knows, as the number of low bits."""
_READ = 0b1100
"""To read files and directories."""
_BENEATH = 1
"""Kind of a rule: all below a directory."""
_NET_RIGHTS = 0b11
"""To bind and to connect TCP, from version 4 on."""
_NO_NEW_PRIVILEGES = 38
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000


def isolate() -> tuple[str, ...]:
    """Give up what this process, of one thread, does not need; what is shut off now: ``files``, ``tcp``,
    ``network``. Cannot be undone, and holds for children too."""
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        return ()
    libc = ctypes.CDLL(None, use_errno=True)
    network = _unshare(libc)
    return (*_landlock(libc), *(("network",) if network else ()))


def _unshare(libc: ctypes.CDLL) -> bool:
    """Move to a network namespace without interfaces, with the help of a user namespace if need be."""
    return any(libc.unshare(flags) == 0 for flags in (_NEW_NETWORK, _NEW_USER | _NEW_NETWORK))


def _landlock(libc: ctypes.CDLL) -> tuple[str, ...]:
    """Allow nothing that Landlock knows but reading loaded packages."""
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ABI))
    if version < 1:
        return ()
    rights = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    tcp = version >= 4
    rules = struct.pack("QQ", rights, _NET_RIGHTS) if tcp else struct.pack("Q", rights)
    ruleset = libc.syscall(_CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint32(0))
    if ruleset < 0:
        return ()
    for directory in _package_directories():
        try:
            opened = os.open(directory, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rule = struct.pack("=Qi", _READ, opened)
        libc.syscall(_ADD_RULE, ruleset, _BENEATH, rule, ctypes.c_uint32(0))
        os.close(opened)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    done = libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0
    os.close(ruleset)
    return ("files", *(("tcp",) if tcp else ())) if done else ()


def _package_directories() -> set[str]:
    """Directories of the standard library and of the packages that are loaded."""
    packages = [module for name, module in list(sys.modules.items()) if "." not in name]
    paths = [path for module in packages for path in getattr(module, "__path__", ())]
    return {str(Path(os.__file__).parent), *paths}
