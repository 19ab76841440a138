"""Values of the command line, judged as they are read: a wrong one is told with what was expected."""

import argparse
import os
from pathlib import Path
from typing import Final

from qim.core.contract.frame_fields import ACCESS_TOKEN_CHARS_MAX, DEVICE_ID_BYTES_MAX
from qim.core.contract.ids import ID_BYTES, NIL_ID, TENANT_ID_BYTES_MAX, tenant_id_is_valid
from qim.core.contract.sequences import U64_MAX

DATA_VARIABLE: Final = "QIM_DATA"
TOKEN_VARIABLE: Final = "QIM_TOKEN"
SECRET_VARIABLE: Final = "QIM_AUTH_SECRET"
DEFAULT_DATA: Final = Path(".qim/data")
RETENTION_DAYS_MAX: Final = 3_650


class UsageError(Exception):
    """A command that can't be carried out as asked; the text says what to do."""


def default_data() -> Path:
    """$QIM_DATA, else .qim/data below the present folder: for `qim up` and the commands beside it alike."""
    return Path(os.environ.get(DATA_VARIABLE) or DEFAULT_DATA)


def user_id(text: str) -> int:
    """A u64 above 0."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= U64_MAX:
        raise argparse.ArgumentTypeError(f"a user is a number from 1 to {U64_MAX}, not {text!r}")
    return number


def user_ids(text: str) -> tuple[int, ...]:
    """2,3,4."""
    return tuple(user_id(part) for part in text.split(",") if part)


def id16(text: str) -> bytes:
    """32 hexadecimal digits, not all zero."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != ID_BYTES or found == NIL_ID:
        raise argparse.ArgumentTypeError(f"an id has {2 * ID_BYTES} hexadecimal digits: {text!r}")
    return found


def address(text: str) -> tuple[str, int]:
    """HOST:PORT; IPv6 as [::1]:PORT."""
    host, colon, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() else -1
    if not colon or not host or not 0 <= number <= 65535 or (":" in host and host[0] != "["):
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, got {text!r}")
    return host.strip("[]"), number


def tenant_name(text: str) -> str:
    """1 to 64 bytes of UTF-8. An empty one is no default: an unset variable would speak for another tenant than was meant."""
    if not tenant_id_is_valid(text):
        raise argparse.ArgumentTypeError(
            f"a tenant has 1 to {TENANT_ID_BYTES_MAX} bytes of UTF-8, not {text!r}"
        )
    return text


def device_name(text: str) -> str:
    """1 to 64 bytes of UTF-8; an empty one is no default either."""
    if not text or not is_utf8(text) or len(text.encode()) > DEVICE_ID_BYTES_MAX:
        raise argparse.ArgumentTypeError(
            f"a device has 1 to {DEVICE_ID_BYTES_MAX} bytes of UTF-8, not {text!r}"
        )
    return text


def access_token(text: str) -> str:
    """ASCII, as tokens are. The value is never told: it may be one with a letter too much."""
    if not text or not text.isascii() or len(text) > ACCESS_TOKEN_CHARS_MAX:
        raise argparse.ArgumentTypeError(
            f"an access token has 1 to {ACCESS_TOKEN_CHARS_MAX} characters of ASCII"
        )
    return text


def utf8(text: str) -> str:
    """What can be sent: bytes of the command line that are no UTF-8 stand for no text."""
    if not is_utf8(text):
        raise argparse.ArgumentTypeError(f"expected UTF-8, got {text!r}")
    return text


def is_utf8(text: str) -> bool:
    """No byte stands in it that the shell gave and UTF-8 doesn't know."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def tenant_days(text: str) -> tuple[str, int]:
    """TENANT=DAYS, 1..3650 days."""
    name, equals, days = text.rpartition("=")
    number = int(days) if days.isascii() and days.isdigit() else 0
    if not equals or not tenant_id_is_valid(name) or not 1 <= number <= RETENTION_DAYS_MAX:
        wanted = f"TENANT=DAYS with 1 to {RETENTION_DAYS_MAX} days"
        raise argparse.ArgumentTypeError(f"expected {wanted}, got {text!r}")
    return name, number


def server(text: str) -> str:
    """HOST:PORT as it is dialled."""
    host, port = address(text)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def seconds(text: str) -> float:
    """A time above 0."""
    return _above_0(text, "a time in seconds")


def rate(text: str) -> float:
    """So many a second, above 0."""
    return _above_0(text, "a number a second")


def _above_0(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{what} above 0, not {text!r}")
    return value


def count(text: str) -> int:
    """A number above 0."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= U64_MAX:
        raise argparse.ArgumentTypeError(f"a number above 0, not {text!r}")
    return int(text)
