"""Why a handshake failed, as one stable word and a sentence: the log line of a refusal must say which it was."""

import ssl
from typing import Final


class AlpnMissing(ssl.SSLError):
    """The handshake was good, but for another protocol."""


_VERIFY: Final[dict[int, tuple[str, str]]] = {
    # X509_V_ERR_…: unable to get issuer (2, 20, 21), self-signed (18, 19), not yet valid (9), expired (10), purpose (26).
    2: ("certificate_ca", "its certificate was issued by a CA that is not trusted here"),
    9: ("certificate_early", "its certificate is not valid yet"),
    10: ("certificate_expired", "its certificate has expired"),
    18: ("certificate_ca", "its certificate is self-signed and not trusted here"),
    19: ("certificate_ca", "its chain ends in a CA that is not trusted here"),
    20: ("certificate_ca", "its certificate was issued by a CA that is not trusted here"),
    21: ("certificate_ca", "its certificate was issued by a CA that is not trusted here"),
    26: ("certificate_purpose", "its certificate is not made for this side of a connection"),
    62: ("certificate_name", "its certificate is for another name"),
}
_REASON: Final[dict[str, tuple[str, str]]] = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": ("certificate_missing", "it showed no certificate"),
    "UNSUPPORTED_PROTOCOL": ("tls_version", "it offers no TLS 1.3"),
    "WRONG_VERSION_NUMBER": ("not_tls", "it doesn't speak TLS"),
    "HTTP_REQUEST": ("not_tls", "it speaks plain HTTP"),
    "RECORD_LAYER_FAILURE": ("not_tls", "it doesn't speak TLS"),
    "TLSV1_ALERT_PROTOCOL_VERSION": ("tls_version", "it refuses TLS 1.3"),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": ("certificate_demanded", "it demands a certificate"),
    "TLSV1_ALERT_UNKNOWN_CA": ("ca_refused", "it doesn't trust the CA of our certificate"),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": ("expiry_refused", "our certificate has expired"),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": ("certificate_refused", "it refuses our certificate"),
    "SSLV3_ALERT_BAD_CERTIFICATE": ("certificate_refused", "it refuses our certificate"),
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": (
        "purpose_refused",
        "our certificate is not made for this side of a connection",
    ),
    "TLSV1_ALERT_DECRYPT_ERROR": ("certificate_refused", "it can't verify our signature"),
}


def handshake_fault(error: BaseException) -> tuple[str, str]:
    """A stable code and a sentence about the peer; anything else than TLS by its own words."""
    if isinstance(error, AlpnMissing):
        return "alpn", str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        known = _VERIFY.get(error.verify_code)
        detail = error.verify_message.rstrip(".")
        if known is not None:
            return known[0], f"{known[1]} ({detail})"
        return "certificate", f"its certificate is refused: {detail}"
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", None) or "unknown"  # only OpenSSL's own have one
        known = _REASON.get(reason)
        return known if known is not None else ("tls", f"TLS failed: {reason.lower()}")
    if isinstance(error, TimeoutError) and not error.errno:
        return "timeout", str(error) or "no answer in time"
    if isinstance(error, ConnectionError):
        return "closed", str(error) or "closed by the peer"
    return "network", str(error) or type(error).__name__
