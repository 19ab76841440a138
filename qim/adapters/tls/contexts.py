"""The one kind of TLS context there is here."""

import ssl


def tls13(protocol: int) -> ssl.SSLContext:
    """An empty context: TLS 1.3 and nothing older, no roots, no tickets.

    A ticket would let a peer back in without its certificate being looked at again, expired or struck from a list.
    """
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    return context
