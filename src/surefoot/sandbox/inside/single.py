"""One program in a container that was started for it: ``python -m inside.single LIMITS``.

Standard input brings four bytes, the length, then the program (``box.pack``), then the program's own
input. The container has taken network, files and rights; this adds limits for a process and the filter of
system calls.
"""

from __future__ import annotations

import io
import json
import os
import struct
import sys

from . import box, callee, judge, seccomp, wire  # noqa: F401 - run by name

BEGUN = b"\0begun\0"
"""First on standard error when the program begins: everything before it comes from the container."""


def main() -> None:
    """Confine this process and run the program."""
    (length,) = struct.unpack("<I", exactly(4))
    os.chdir(box.WORK)
    try:
        argv, stdin = box.unpack(io.BytesIO(exactly(length)))
        if stdin is not None:
            box.replace_stdin(stdin)
    except OSError as problem:
        box.refuse(2, f"the files cannot be written: {problem.strerror}; raise 'disk_bytes'")
    box.limit(json.loads(sys.argv[1]))
    seccomp.install(box.libc, seccomp.filter_program())
    os.write(2, BEGUN)
    box.start(argv, 2)


def exactly(size: int) -> bytes:
    """Bytes of standard input, unbuffered: what follows is for the program."""
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            raise EOFError("standard input ended within the program")
        data += part
    return data


if __name__ == "__main__":
    main()
