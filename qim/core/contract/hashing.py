"""H(domain; fields), the one digest every derived identity is made of (contract.md, Five sequences).

Each field is framed by its length, so no two field lists share an encoding, and the domain goes into BLAKE2b's
`person`, so no two kinds of identity share a digest.
"""

import struct
from functools import lru_cache
from hashlib import blake2b

DIGEST_BYTES = 16
DOMAINS_MAX = 128
U64_MAX = (1 << 64) - 1

_LENGTH = struct.Struct(">I")
_INTEGER = struct.Struct(">IQ")  # the length prefix of an integer is always 8


def H(domain: str, *fields: bytes | int | str) -> bytes:  # noqa: N802 - the contract's own name for it
    """16 bytes: BLAKE2b(digest_size 16, person = domain) over the framed fields.

    domain: ASCII, at most 16 bytes. Integers are u64 and written as 8 bytes big-endian, strings as UTF-8.
    Raises ValueError for an integer outside u64, a domain that is too long or not ASCII, or a lone surrogate.
    """
    parts: list[bytes] = []
    for field in fields:
        # Bytes and true integers are nearly all there is, and this runs a dozen times a message.
        if type(field) is bytes:
            parts.append(_LENGTH.pack(len(field)))
            parts.append(field)
        elif type(field) is int and 0 <= field <= U64_MAX:
            parts.append(_INTEGER.pack(8, field))
        else:
            parts.append(frame_field(field))
    return digest_of(domain, b"".join(parts))


def digest_of(domain: str, framed: bytes) -> bytes:
    """H of fields framed already: for callers that frame a fixed shape in one call."""
    hasher = _personal(domain).copy()
    hasher.update(framed)
    return hasher.digest()


@lru_cache(maxsize=DOMAINS_MAX)
def _personal(domain: str) -> blake2b:
    """The hasher of a domain before its first byte: a copy costs half of making one."""
    return blake2b(digest_size=DIGEST_BYTES, person=domain.encode("ascii"))


def frame_field(field: bytes | int | str) -> bytes:
    """u32 length + bytes of one field, as H feeds it. Raises ValueError for an integer outside u64."""
    if isinstance(field, int):
        if not 0 <= field <= U64_MAX:
            raise ValueError(f"an integer field must be a u64, got {field}")
        return _INTEGER.pack(8, field)
    data = field.encode() if isinstance(field, str) else field
    return _LENGTH.pack(len(data)) + data
