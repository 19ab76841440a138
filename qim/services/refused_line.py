"""A start that is refused, as the last line of its process: as the log's lines are, so that one reader reads both."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from errno import EADDRINUSE, EADDRNOTAVAIL
from typing import Final

from qim.adapters.start_refused import StartRefused
from qim.services.settings.values import show_address

EVENT: Final = "start refused"
_TAKEN: Final = {
    EADDRINUSE: ("taken by another process", "a free one"),
    EADDRNOTAVAIL: ("none of this machine's", "an address of an interface of this machine"),
}


def refused_line(command: str, service: str, error: Exception, *, as_json: bool) -> str:
    """``command`` as it was typed. JSON: ``why`` is the whole sentence; code, found, needed and command where there are."""
    if not as_json:
        return f"{command}: {error}"
    fields = {"why": str(error)}
    if isinstance(error, StartRefused):
        fields |= {"code": error.code, "what": error.what, "found": error.got}
        fields |= {"needed": error.expected, "command": error.command}
    return line_of("error", service, EVENT, fields)


def line_of(level: str, service: str, event: str, fields: dict[str, str]) -> str:
    """A JSON line as log_sink.py writes them, for what is said before there is a log."""
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": stamp, "level": level, "service": service, "event": event, **fields})


@contextmanager
def refused_address(variable: str, address: tuple[str, int]) -> Iterator[None]:
    """Around the listening on ``address``: one that can't be had is refused like everything else. Raises StartRefused."""
    try:
        yield
    except OSError as error:
        got, expected = _TAKEN.get(error.errno or 0, ("", ""))
        if not got:
            raise
        taken = error.errno == EADDRINUSE
        raise StartRefused(
            "address_taken" if taken else "address_not_ours",
            f"{variable}: {show_address(address)}",
            got=f"{got} ({os.strerror(error.errno or 0)})",
            expected=expected,
            command=f"ss -ltnp 'sport = :{address[1]}'" if taken else "ip -brief address",
        ) from error
