"""How a value is written in the environment or a file: one reader a kind, each with the words that say what it expects."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from qim.adapters.loopback import is_wildcard
from qim.adapters.tls.internal_settings import fingerprints

Address = tuple[str, int]
PORT_MAX: Final = 65_535
TRUE: Final = ("1", "true", "yes", "on")
FALSE: Final = ("0", "false", "no", "off")


class Kind(Struct, frozen=True, kw_only=True, gc=False):
    """``read`` gives the value or raises ValueError; ``expected`` is what a person must write; ``show`` its inverse."""

    expected: str
    read: Callable[[str], Any]
    show: Callable[[Any], str] = str
    more: str = ""
    """Behind ``expected`` in a refusal alone: why something near it is none of these."""


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() else -1
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or number > PORT_MAX or number < 0 or (":" in host and not bracketed):
        raise ValueError
    return (host[1:-1] if bracketed else host), number


def _dialled(text: str) -> Address:
    """Where somebody listens: not every interface, and not whatever port is free."""
    host, port = _address(text)
    if not port or is_wildcard(host):
        raise ValueError
    return host, port


def show_address(address: Address) -> str:
    """host:port, an IPv6 host in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _switch(text: str) -> bool:
    lowered = text.lower()
    if lowered in TRUE:
        return True
    if lowered in FALSE:
        return False
    raise ValueError


def _list(text: str) -> tuple[str, ...]:
    parts = tuple([part.strip() for part in text.split(",")])
    if not all(parts):
        raise ValueError
    return parts


def _brokers(text: str) -> tuple[str, ...]:
    for one in _list(text):
        _dialled(one)
    return _list(text)


def _endpoints(text: str) -> tuple[str, ...]:
    """host:port, or with a scheme in front."""
    for one in _list(text):
        _dialled(one.removeprefix("http://").removeprefix("https://"))
    return _list(text)


def _tenants(text: str) -> tuple[tuple[str, int], ...]:
    """TENANT=DAYS,TENANT=DAYS; which of two for one tenant holds nobody can know."""
    found: list[tuple[str, int]] = []
    for one in _list(text):
        tenant, equals, days = one.rpartition("=")
        if not equals or not tenant or not 1 <= int(days) <= 3650:
            raise ValueError
        found.append((tenant, int(days)))
    if len(dict(found)) < len(found):
        raise ValueError
    return tuple(found)


def _word(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


def whole(least: int, greatest: int) -> Kind:
    """A whole number within both, included."""

    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() else -1
        if not least <= number <= greatest:
            raise ValueError
        return number

    return Kind(expected=f"a whole number, {least}..{greatest}", read=read)


def power_of_two(greatest: int) -> Kind:
    """1, 2, 4, … ``greatest``."""

    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() else 0
        if not 1 <= number <= greatest or number & (number - 1):
            raise ValueError
        return number

    return Kind(expected=f"a power of two, 1..{greatest}", read=read)


def one_of(*words: str, more: str = "") -> Kind:
    """One of these words. ``more``: told to whoever writes another, why that is none."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError
        return text

    return Kind(expected=" or ".join(words), read=read, more=more)


def _commas(values: tuple[str, ...]) -> str:
    return ",".join(values)


def _show_switch(value: bool) -> str:
    return "1" if value else "0"


def _show_tenants(values: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"{tenant}={days}" for tenant, days in values)


WORD: Final = Kind(expected="a text that is not empty", read=_word)
PATH: Final = Kind(expected="a file's path", read=_word)
URL: Final = Kind(expected="a URL", read=_word)
ADDRESS: Final = Kind(expected="HOST:PORT, IPv6 as [::1]:PORT", read=_address, show=show_address)
DIALLED: Final = Kind(
    expected="HOST:PORT that others can dial, not 0.0.0.0 and not port 0",
    read=_dialled,
    show=show_address,
)
SWITCH: Final = Kind(expected="1 or 0", read=_switch, show=_show_switch)
BROKERS: Final = Kind(expected="HOST:PORT,HOST:PORT,…", read=_brokers, show=_commas)
ENDPOINTS: Final = Kind(expected="HOST:PORT,HOST:PORT,…", read=_endpoints, show=_commas)
HOSTS: Final = Kind(
    expected="HOST,HOST,… (HOST:PORT where it is not 9042)", read=_list, show=_commas
)
FINGERPRINTS: Final = Kind(
    expected="SHA-256 of a leaf certificate in hexadecimal, several with commas between",
    read=fingerprints,
    show=_commas,
)
TENANTS: Final = Kind(
    expected="TENANT=DAYS,… with 1..3650 days, each tenant once", read=_tenants, show=_show_tenants
)
