"""What may stand in a log in place of a secret or a text: enough to compare and size, nothing to read.

Tokens, cursor signatures, keys, bodies and previews never enter a log (seed: observability).
"""

from qim.core.contract.hashing import H

_DIGEST_HEX = 8


def secret_digest(secret: str | bytes) -> str:
    """`h:xxxxxxxx/len=64`: tells whether two secrets are the same, and nothing else; len in bytes."""
    data = secret.encode(errors="surrogatepass") if isinstance(secret, str) else secret
    return f"h:{H('qim.redact', data).hex()[:_DIGEST_HEX]}/len={len(data)}"


def body_shape(body: bytes) -> str:
    """`<17 bytes>`."""
    return f"<{len(body)} bytes>"


def text_shape(text: str) -> str:
    """`<12 chars>`."""
    return f"<{len(text)} chars>"
