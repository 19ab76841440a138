"""What the servers' client libraries log becomes lines of ours: one format, one stream, whatever thread it comes from."""

import asyncio
import logging
from collections.abc import Callable
from traceback import format_exception
from typing import Final

Tell = Callable[[str, str, dict[str, object]], None]
"""level, event, fields; on the event loop."""
LEVELS: Final = {"WARNING": "warning", "ERROR": "error", "CRITICAL": "error"}
TEXT_CHARS_MAX: Final = 1_000
TRACE_CHARS_MAX: Final = 4_000


class LibraryLogs(logging.Handler):
    """Installed by ``begin`` at the root logger for warnings and worse, taken off again by ``end``."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Tell) -> None:
        super().__init__(logging.WARNING)
        self._loop = loop
        self._tell = tell

    def begin(self) -> None:
        """From now on."""
        logging.getLogger().addHandler(self)

    def end(self) -> None:
        """No longer."""
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """One record; a loop that has closed drops it."""
        try:
            text = record.getMessage()[:TEXT_CHARS_MAX]
            fields: dict[str, object] = {"library": record.name, "text": text}
            if record.exc_info is not None and record.exc_info[1] is not None:
                fields["error"] = repr(record.exc_info[1])
                fields["traceback"] = "".join(format_exception(record.exc_info[1]))[
                    -TRACE_CHARS_MAX:
                ]
            level = LEVELS.get(record.levelname, "warning")
            self._loop.call_soon_threadsafe(self._tell, level, "a library says", fields)
        except RuntimeError:
            pass
        except Exception:
            self.handleError(record)
