"""TLS of the gateway's listener: TLS 1.3, ALPN qim/1, one pair (QIM_TLS_CERT, QIM_TLS_KEY); clients prove themselves by AUTH."""

import ssl
from collections.abc import Iterable, Mapping
from typing import Final

from qim.adapters.reporting import SILENT, Reporting
from qim.adapters.tls.contexts import tls13
from qim.adapters.tls.files import TlsPair, pair_of
from qim.adapters.tls.pair import SERVER_AUTH, Leaf, load_pair
from qim.adapters.tls.reload import Reloadable
from qim.core.contract.wire import ALPN

PAIR_NAMES: Final = ("QIM_TLS_CERT", "QIM_TLS_KEY")


class ClientFacingTls:
    """Asked for a context at every accept."""

    def __init__(self, pair: TlsPair, reporting: Reporting = SILENT) -> None:
        """Raises StartRefused."""
        self._pair = pair
        self._held = Reloadable("client-facing", self._build, reporting)

    @staticmethod
    def from_environment(
        values: Mapping[str, str], reporting: Reporting = SILENT
    ) -> "ClientFacingTls | None":
        """None: neither variable is set, clients are served in plaintext. Raises StartRefused (half a pair too)."""
        pair = pair_of(values.get(PAIR_NAMES[0], ""), values.get(PAIR_NAMES[1], ""), PAIR_NAMES)
        return None if pair is None else ClientFacingTls(pair, reporting)

    def server_context(self) -> ssl.SSLContext:
        """For the next handshake."""
        return self._held.current

    def reload(self) -> bool:
        """See Reloadable."""
        return self._held.reload()

    def gauges(self) -> Iterable[tuple[str, str, float]]:
        """See Reloadable."""
        return self._held.gauges()

    def _build(self) -> tuple[ssl.SSLContext, dict[str, Leaf]]:
        context = tls13(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols([ALPN])
        leaf = load_pair(context, self._pair, SERVER_AUTH)
        return context, {"server": leaf}
