"""Access tokens: who a connection speaks for, signed (contract.md, AUTH). Pure: secret and now are handed in.

Form: `qim1.` + base64url(payload) + `.` + base64url(HMAC-SHA256), without padding; payload a MessagePack array.
"""

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

import msgspec

from qim.core.contract.errors import ErrorCode, ProtocolError
from qim.core.contract.frame_fields import ACCESS_TOKEN_CHARS_MAX, DEVICE_ID_BYTES_MAX
from qim.core.contract.ids import tenant_id_is_valid
from qim.core.contract.sequences import U64_MAX

_PREFIX: Final = "qim1"
_CONTEXT: Final = b"qim.token.v1\x00"


class AccessToken(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """device_id None: good for every device of the user; expires_at: wall ms, no longer valid AT it."""

    tenant_id: str
    user_id: int
    device_id: bytes | None
    expires_at: int

    def fault(self) -> str | None:
        """What is wrong with these values, or None."""
        if not tenant_id_is_valid(self.tenant_id):
            return "tenant_id must have 1..64 bytes"
        if not 1 <= self.user_id <= U64_MAX:
            return "user_id must be a u64 above 0"
        if self.device_id is not None and not 1 <= len(self.device_id) <= DEVICE_ID_BYTES_MAX:
            return f"device_id must have 1..{DEVICE_ID_BYTES_MAX} bytes"
        return None if 0 <= self.expires_at <= U64_MAX else "expires_at must be a u64"


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(AccessToken)


def sign_token(token: AccessToken, secret: bytes) -> str:
    """The token's text. Raises ValueError on values no token may have."""
    why = token.fault()
    if why is not None:
        raise ValueError(why)
    return _signed(_encoder.encode(token), secret)


def verify_token(text: str, secret: bytes, *, now_ms: int) -> AccessToken:
    """The token that `secret` signed. Raises ProtocolError UNAUTHENTICATED, or TOKEN_EXPIRED when now_ms ≥ expires_at."""
    token = _verified(text, secret)
    if token is None or token.fault() is not None:
        raise ProtocolError(ErrorCode.UNAUTHENTICATED, "the access token is not one of ours")
    if now_ms >= token.expires_at:
        raise ProtocolError(
            ErrorCode.TOKEN_EXPIRED, f"the access token expired at {token.expires_at} ms"
        )
    return token


def _verified(text: str, secret: bytes) -> AccessToken | None:
    parts = text.split(".")
    if len(text) > ACCESS_TOKEN_CHARS_MAX or not text.isascii() or len(parts) != 3:
        return None
    try:
        payload = urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
    except binascii.Error:
        return None
    # The whole text is compared, so a token has one spelling only.
    if not hmac.compare_digest(text.encode(), _signed(payload, secret).encode()):
        return None
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return None


def _signed(payload: bytes, secret: bytes) -> str:
    mac = hmac.digest(secret, _CONTEXT + payload, "sha256")
    return ".".join((_PREFIX, _text(payload), _text(mac)))


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
