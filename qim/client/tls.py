"""TLS towards a gateway: 1.3, ALPN qim/1, and the roots one says; a server that agrees on neither is not spoken to."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from qim.core.contract.wire import ALPN

CA_VARIABLE: Final = "QIM_TLS_CA"
SNI_VARIABLE: Final = "QIM_TLS_SNI"
SYSTEM_ROOTS: Final = "system"


class ClientTlsUnusable(ValueError):
    """What is asked for makes no TLS; the text says what to do."""


class ClientTls(Struct, frozen=True, kw_only=True):
    """``server_name`` "": the host that is dialled."""

    context: ssl.SSLContext
    server_name: str = ""


def client_tls(ca: Path | None, server_name: str = "") -> ClientTls:
    """Trust the CAs in the PEM file ``ca`` and no others; None: the roots of this system. Raises ClientTlsUnusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    if ca is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cafile=ca)
        except (OSError, ssl.SSLError) as error:
            why = error.strerror or "no PEM certificate"
            raise ClientTlsUnusable(f"{CA_VARIABLE} ({ca}): {why}") from None
    return ClientTls(context=context, server_name=server_name)


def client_tls_from_environment(values: Mapping[str, str]) -> ClientTls | None:
    """QIM_TLS_CA: a PEM file, or "system"; QIM_TLS_SNI. None: plaintext. Raises ClientTlsUnusable."""
    ca, server_name = values.get(CA_VARIABLE, ""), values.get(SNI_VARIABLE, "")
    if not ca:
        if server_name:
            # A name to check and nothing to check it by: plaintext is not what was meant.
            raise ClientTlsUnusable(
                f"{SNI_VARIABLE} is set without {CA_VARIABLE}; the CA file, or {SYSTEM_ROOTS!r}"
            )
        return None
    return client_tls(None if ca == SYSTEM_ROOTS else Path(ca), server_name)


def agreed(secured: Any) -> bool:
    """Did the handshake of this ``ssl_object`` agree on our protocol?"""
    return bool(secured.selected_alpn_protocol() == ALPN)
