"""An operator's tool asks an auditor: one connection, one order, one answer or a reason why there is none."""

import asyncio
from typing import Final

from qim.adapters.reporting import Reporting
from qim.adapters.rpc.network import RpcNetwork
from qim.adapters.rpc.roles import ProcessRole
from qim.adapters.rpc.wiring import RpcLimits, RpcSecurity
from qim.adapters.start_refused import StartRefused
from qim.core.contract.rpc_admin import AdminDone, AdminOrder
from qim.core.ports.network import Received, Send

LOOK_SECONDS: Final = 0.25
_UNREACHED: Final = frozenset({"network", "timeout", "closed"})
_ADMIN_LIST: Final = "QIM_INTERNAL_ADMIN_CERT_SHA256"
_SHOW: Final = 'openssl x509 -in "$QIM_INTERNAL_TLS_CERT" -noout -subject -issuer -dates -purpose'
_EXPECTED: Final[dict[str, tuple[str, str]]] = {
    "wrong_role": (
        f"one whose SHA-256 the auditor has in {_ADMIN_LIST}",
        'openssl x509 -in "$QIM_INTERNAL_TLS_CERT" -outform DER | openssl dgst -sha256 -r',
    ),
    "ca_refused": ("one that the auditor's QIM_INTERNAL_TLS_CLIENT_CA issued", _SHOW),
    "expiry_refused": ("one that is valid now", _SHOW),
    "purpose_refused": ("one made for clientAuth", _SHOW),
    "certificate_refused": ("one that the auditor can verify", _SHOW),
    "certificate_demanded": (
        "an admin's, in QIM_INTERNAL_TLS_CERT and QIM_INTERNAL_TLS_KEY",
        "qim certs dev --out certs  # to try; then: env $(cat certs/admin.env) qim …",
    ),
    "not_tls": (
        "an auditor with mTLS: admin operations need it, on loopback too",
        "qim config check --role auditor",
    ),
}
_THEIRS: Final = (
    "an auditor whose certificate QIM_INTERNAL_TLS_SERVER_CA issued for QIM_INTERNAL_TLS_SERVER_NAME_AUDITOR",
    "qim config print | grep INTERNAL_TLS",
)


class AuditorUnreachable(Exception):
    """Nobody answers. ``ordered``: the order was out, so it may have been carried out; a dry run tells."""

    def __init__(self, address: str, why: str, *, ordered: bool) -> None:
        told = "; the order may have been carried out: a dry run says what is left"
        super().__init__(f"the auditor at {address}: {why}{told if ordered else ''}")
        self.ordered = ordered


async def ask_auditor(
    address: str, order: AdminOrder, security: RpcSecurity | None, seconds_max: float
) -> AdminDone:
    """Its answer. Raises StartRefused (no mTLS here, or refused by either side), AuditorUnreachable."""
    call = _Call(address)
    limits = RpcLimits(queue_seconds_max=seconds_max, idle_seconds_max=seconds_max + 60.0)
    network = RpcNetwork(
        None,
        ProcessRole.ADMIN,
        call.received,
        security=security,
        reporting=Reporting(log=call.log),
        limits=limits,
    )
    await network.start()
    try:
        network.send(Send(address=address, message=order))
        return await call.answered(network, seconds_max)
    finally:
        await network.close()


class _Call:
    """What the network tells of the one connection there is."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._answer: asyncio.Future[AdminDone] = asyncio.get_running_loop().create_future()

    def received(self, event: Received) -> None:
        """The answer; an auditor has nothing else to say."""
        if isinstance(event.message, AdminDone) and not self._answer.done():
            self._answer.set_result(event.message)

    def log(self, level: str, event: str, fields: dict[str, object]) -> None:
        """Why there is no connection, or no longer one."""
        code, why = str(fields.get("code", "")), str(fields.get("why", ""))
        if event == "not reached":
            self._fail(self._refused(code, why))
        elif event == "connection lost":
            self._fail(AuditorUnreachable(self._address, why, ordered=True))

    async def answered(self, network: RpcNetwork, seconds_max: float) -> AdminDone:
        """Wait; a connection that the auditor closes without a word is looked for."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds_max
        while not self._answer.done():
            await asyncio.wait((self._answer,), timeout=LOOK_SECONDS)
            seen = {name: value for name, _, value in network.gauges()}
            out = bool(seen["rpc_messages_sent"])
            if out and not seen["rpc_peers_open"]:
                self._fail(AuditorUnreachable(self._address, "it hung up", ordered=True))
            elif loop.time() > deadline:
                why = f"no answer within {seconds_max:g} s"
                self._fail(AuditorUnreachable(self._address, why, ordered=out))
        return self._answer.result()

    def _fail(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)

    def _refused(self, code: str, why: str) -> Exception:
        if code in _UNREACHED:
            return AuditorUnreachable(self._address, why, ordered=False)
        expected, command = _EXPECTED.get(code, _THEIRS)
        return StartRefused(
            code if code.startswith("admin_") else f"admin_{code}",
            f"the certificate between this command and the auditor at {self._address}",
            got=f"not accepted: {why}",
            expected=expected,
            command=command,
        )
