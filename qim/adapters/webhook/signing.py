"""Standard Webhooks signatures: the receiver knows who sent it, when, and that nobody changed it.

What is signed is ``id.timestamp.body``; one signature a secret, so that a secret can be replaced without a gap.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

SECRET_PREFIX: Final = "whsec_"
SECRET_BYTES_MIN: Final = 24
SECRET_BYTES_MAX: Final = 64
"""As the specification has it."""


def secret_of(text: str) -> bytes | None:
    """The key of ``whsec_`` + base64; None where it is none."""
    if not text.startswith(SECRET_PREFIX):
        return None
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        return None
    return key if SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX else None


def headers(
    secrets: Sequence[bytes], webhook_id: str, timestamp_s: int, body: bytes
) -> dict[str, str]:
    """webhook-id, webhook-timestamp and, where there is a secret, webhook-signature."""
    told = {"webhook-id": webhook_id, "webhook-timestamp": str(timestamp_s)}
    if secrets:
        signed = b"%s.%d.%s" % (webhook_id.encode(), timestamp_s, body)
        told["webhook-signature"] = " ".join([_signature(key, signed) for key in secrets])
    return told


def _signature(key: bytes, signed: bytes) -> str:
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()
