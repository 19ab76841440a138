"""What a caller hands to the SDK, judged at its edge: a wrong type or address is the caller's error, told by name."""

from collections.abc import Iterable
from operator import index

from qim.core.client.vocabulary import ClientConfig
from qim.core.contract.frame_fields import ACCESS_TOKEN_CHARS_MAX, DEVICE_ID_BYTES_MAX
from qim.core.contract.ids import tenant_id_is_valid
from qim.core.contract.sequences import U64_MAX

_PORT_MAX = 65_535


def octets(name: str, value: object) -> bytes:
    """Bytes or another buffer. Raises TypeError."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{name} must be bytes, not {_kind(value)}")


def octets_or_none(name: str, value: object) -> bytes | None:
    """As ``octets``, or None."""
    return None if value is None else octets(name, value)


def text(name: str, value: object) -> str:
    """A text. Raises TypeError."""
    if isinstance(value, str):
        return value
    raise TypeError(f"{name} must be a str, not {_kind(value)}")


def body(value: object) -> bytes:
    """A message's body; a text as UTF-8. Raises TypeError, ValueError (a lone surrogate)."""
    return value.encode() if isinstance(value, str) else octets("body", value)


def whole(name: str, value: object) -> int:
    """A whole number. Raises TypeError."""
    if not isinstance(value, bool):
        try:
            return index(value)  # type: ignore[arg-type] # what has no index is what is looked for
        except TypeError:
            pass
    raise TypeError(f"{name} must be an int, not {_kind(value)}")


def users(name: str, value: Iterable[int]) -> tuple[int, ...]:
    """User ids in the order given. Raises TypeError."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a sequence of user ids, not {_kind(value)}")
    return tuple(whole(f"{name}: a user id", user) for user in value)


def checked(config: ClientConfig) -> ClientConfig:
    """A configuration that a server could take. Raises TypeError, ValueError."""
    if not 1 <= whole("user_id", config.user_id) <= U64_MAX:
        raise ValueError(f"user_id must be from 1 to {U64_MAX}, not {config.user_id}")
    if not 1 <= len(octets("device_id", config.device_id)) <= DEVICE_ID_BYTES_MAX:
        raise ValueError(f"device_id must have 1 to {DEVICE_ID_BYTES_MAX} bytes")
    if not tenant_id_is_valid(text("tenant_id", config.tenant_id)):
        raise ValueError("tenant_id must have 1 to 64 bytes")
    access_token(config.access_token)
    _check_addresses(config.addresses)
    return config


def access_token(value: object) -> str:
    """A token as AUTH carries it. Raises TypeError, ValueError."""
    token = text("access_token", value)
    if len(token) > ACCESS_TOKEN_CHARS_MAX:
        raise ValueError(f"access_token must have at most {ACCESS_TOKEN_CHARS_MAX} characters")
    return token


def _check_addresses(addresses: object) -> None:
    if not isinstance(addresses, tuple | list):
        raise TypeError(f'addresses must be a tuple of "HOST:PORT", not {_kind(addresses)}')
    if not addresses:
        raise ValueError("addresses must name a server at least")
    for address in addresses:
        _check_address(text("addresses: an address", address))


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    number = int(port) if port.isascii() and port.isdigit() else 0
    if not host or not 0 < number <= _PORT_MAX or "/" in host or (":" in host and not bracketed):
        raise ValueError(f'an address is "HOST:PORT", IPv6 "[::1]:PORT", not {address!r}')


def _kind(value: object) -> str:
    return type(value).__name__
