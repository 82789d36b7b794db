"""The server's log, and the lines of what people do on its pages."""

from __future__ import annotations

import logging
from typing import Final, TextIO

from surefoot.printable import printable

AUDIT: Final = logging.getLogger("surefoot.server.audit")
"""A line of JSON for each thing that people do on the pages."""
_FORMAT: Final = logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s")


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes to standard error. Further lines of a message are indented: no text looks like another entry."""

    def format(self, record: logging.LogRecord) -> str:
        """See the base class."""
        return "\n    ".join(map(printable, _FORMAT.format(record).splitlines()))
