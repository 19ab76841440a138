"""The SDK in TLS: roots and names as its variables say, and not a word to a server that doesn't speak our protocol."""

import asyncio
import ssl
from pathlib import Path

import pytest

from qim.client import Client, ClientTls, ClientTlsUnusable, client_tls, client_tls_from_environment
from tests.adapters.tls.chain import chain

HELLO_BYTES = 16


class TlsGateway:
    """A listener with the chain's gateway certificate that keeps what it hears."""

    def __init__(self, alpn: list[str]) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        folder = chain().folder
        self.context.load_cert_chain(folder / "gateway.pem", folder / "gateway.key")
        if alpn:
            self.context.set_alpn_protocols(alpn)
        self.heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.address = ""

    async def __aenter__(self) -> "TlsGateway":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.context)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heard = await reader.read(HELLO_BYTES)
        except (OSError, ssl.SSLError):
            heard = b""
        if not self.heard.done():
            self.heard.set_result(heard)
        writer.transport.abort()


def client(address: str, store: Path, tls: ClientTls | None) -> Client:
    return Client(user_id=7, access_token="token", addresses=(address,), store_path=store, tls=tls)


def from_chain(**changed: str) -> ClientTls:
    found = client_tls_from_environment(chain().environment["client"] | changed)
    assert found is not None
    return found


def test_a_gateway_is_greeted(tmp_path: Path) -> None:
    async def scenario(tls: ClientTls) -> None:
        async with (
            TlsGateway(["qim/1"]) as gateway,
            client(gateway.address, tmp_path / "store.db", tls),
            asyncio.timeout(20),
        ):
            assert len(await gateway.heard) == HELLO_BYTES

    for tls in (from_chain(), from_chain(QIM_TLS_SNI="localhost")):
        asyncio.run(scenario(tls))


async def fault_of(alpn: list[str], tls: ClientTls, store: Path) -> str:
    """Why the client doesn't speak to this server; it must not have said a word."""
    async with TlsGateway(alpn) as gateway, client(gateway.address, store, tls) as user:
        assert user._driver is not None
        async with asyncio.timeout(20):
            while not user._driver.dial_fault:
                await user.next_state()
        assert not gateway.heard.done() or gateway.heard.result() == b""
        return user._driver.dial_fault


@pytest.mark.parametrize("alpn", [[], ["h2"]])
def test_a_server_of_another_protocol_hears_nothing(tmp_path: Path, alpn: list[str]) -> None:
    fault = asyncio.run(fault_of(alpn, from_chain(), tmp_path / "store.db"))
    assert "ALPN qim/1" in fault


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"QIM_TLS_SNI": "elsewhere.example.org"}, "match"),
        (
            {"QIM_TLS_CA": str(chain().folder / "internal-server-ca.pem")},
            "CERTIFICATE_VERIFY_FAILED",
        ),
    ],
)
def test_a_server_that_is_not_who_it_should_be(
    tmp_path: Path, changed: dict[str, str], why: str
) -> None:
    fault = asyncio.run(fault_of(["qim/1"], from_chain(**changed), tmp_path / "store.db"))
    assert why in fault


def test_variables() -> None:
    assert client_tls_from_environment({}) is None
    system = client_tls_from_environment({"QIM_TLS_CA": "system", "QIM_TLS_SNI": "im.example.org"})
    assert system is not None and system.server_name == "im.example.org"
    assert system.context.check_hostname and system.context.verify_mode is ssl.CERT_REQUIRED
    assert system.context.minimum_version is ssl.TLSVersion.TLSv1_3
    with pytest.raises(ClientTlsUnusable, match="without QIM_TLS_CA"):
        client_tls_from_environment({"QIM_TLS_SNI": "im.example.org"})


def test_a_file_that_holds_no_ca(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name in ("empty.pem", "absent.pem"):
        with pytest.raises(ClientTlsUnusable, match="QIM_TLS_CA"):
            client_tls(tmp_path / name)
