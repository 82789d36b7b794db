"""``python -m surefoot``, and the program ``surefoot``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. A hook, which an agent waits for, starts without the rest of it."""
    match sys.argv[1:]:
        case ["guard", "hook", policy] if not policy.startswith("-"):
            from surefoot.guard.hook import main as answer_hook

            sys.exit(answer_hook(policy))
    from surefoot.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
