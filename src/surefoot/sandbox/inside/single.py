"""One program in a container that was started for it: ``python -m inside.single LIMITS PROGRAM``.

PROGRAM is a file with the packed program (``box.pack``); the streams are the program's own. The container has
taken network, files and rights; this adds limits for a process and the filter of system calls.
"""

from __future__ import annotations

import json
import os
import sys

from . import box, callee, judge, seccomp, wire  # noqa: F401 - run by name

BEGUN = b"\0begun\0"
"""First on standard error when the program begins: everything before it comes from the container."""


def main() -> None:
    """Confine this process and run the program."""
    os.chdir(box.WORK)
    try:
        with open(sys.argv[2], "rb") as program:
            argv, stdin = box.unpack(program)
        if stdin is not None:
            box.replace_stdin(stdin)
    except OSError as problem:
        box.refuse(2, f"the files cannot be written: {problem.strerror}; raise 'disk_bytes'")
    box.limit(json.loads(sys.argv[1]))
    seccomp.install(box.libc, seccomp.filter_program())
    os.write(2, BEGUN)
    box.start(argv, 2)


if __name__ == "__main__":
    main()
