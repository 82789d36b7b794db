"""Blocks a process's access to files and the network, as far as the system allows it.

On Linux only. Landlock denies opening files, except reading files of loaded packages (which import more
modules later), and from Linux 6.7 on TCP connections and ports. A new network namespace, if the process may
create one, contains no interfaces at all. Open files and sockets stay open.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Landlock's system calls; the numbers are equal on all architectures."""
_ABI = 1
"""Flag that requests the version of Landlock."""
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file access rights (low bits) by version."""
_READ = 0b1100
"""Rights to read files and directories."""
_BENEATH = 1
"""Rule type: everything below a directory."""
_NET_RIGHTS = 0b11
"""Rights to bind and connect TCP, from version 4 on."""
_NO_NEW_PRIVILEGES = 38
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000


def isolate() -> tuple[str, ...]:
    """Block access for this process, which must have one thread, and its children, for ever.

    Returns the kinds of access that are blocked now, out of ``files``, ``tcp`` and ``network``.
    """
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        return ()
    libc = ctypes.CDLL(None, use_errno=True)
    network = _unshare(libc)
    return (*_landlock(libc), *(("network",) if network else ()))


def _unshare(libc: ctypes.CDLL) -> bool:
    """Move to a network namespace without interfaces, if necessary through a user namespace."""
    return any(libc.unshare(flags) == 0 for flags in (_NEW_NETWORK, _NEW_USER | _NEW_NETWORK))


def _landlock(libc: ctypes.CDLL) -> tuple[str, ...]:
    """Deny everything that Landlock controls except reading loaded packages."""
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
    restricted = libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0
    os.close(ruleset)
    return ("files", *(("tcp",) if tcp else ())) if restricted else ()


def _package_directories() -> set[str]:
    """Directories of the standard library and of loaded packages."""
    packages = [module for name, module in list(sys.modules.items()) if "." not in name]
    paths = [path for module in packages for path in getattr(module, "__path__", ())]
    return {str(Path(os.__file__).parent), *paths}
