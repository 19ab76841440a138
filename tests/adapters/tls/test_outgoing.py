"""Certificates towards servers that are not ours: read again under way, judged whole, and used from the next handshake on."""

import asyncio
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID, ObjectIdentifier
from msgspec.structs import replace

from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.dev_chain import Authority, Issued
from qim.adapters.tls.outgoing import OutgoingFiles, OutgoingTls, read_outgoing
from qim.adapters.tls.pair import CLIENT_AUTH, SERVER_AUTH
from tests.adapters.conftest import NewLoop
from tests.adapters.rpc.stage import Told
from tests.adapters.tls.chain import HOUR

NAMES = ("QIM_X_CA", "QIM_X_CERT", "QIM_X_KEY")
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture
def run(new_loop: NewLoop) -> Run:
    def on_loop(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(work)

    return on_loop


class World:
    """An authority with its server, and the files of a client: ``become`` makes them those of this authority."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(name, 1)
        self.server = self._issued("server", SERVER_AUTH, names=("127.0.0.1",))
        self.client = self._issued("client", CLIENT_AUTH)

    def _issued(self, name: str, purpose: ObjectIdentifier, **more: Any) -> Issued:
        return self.authority.issue(name, purpose, valid_until=datetime.now(UTC) + HOUR, **more)

    def become(self) -> None:
        (self.folder / "ca.pem").write_bytes(self.authority.certificate)
        (self.folder / "cert.pem").write_bytes(self.client.certificate)
        (self.folder / "key.pem").write_bytes(self.client.key)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[tuple[int, list[str]]]:
        """(port, fingerprints of those who came); it takes who shows a certificate of this authority, and nobody else."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        own = self.folder / f"server-{id(self)}"
        own.with_suffix(".pem").write_bytes(self.server.certificate)
        own.with_suffix(".key").write_bytes(self.server.key)
        context.load_cert_chain(own.with_suffix(".pem"), own.with_suffix(".key"))
        context.load_verify_locations(cadata=self.authority.certificate.decode())
        shown: list[str] = []

        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            shown.append(sha256(certificate).hexdigest())
            writer.write(b"hello")
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
        async with server:
            yield int(server.sockets[0].getsockname()[1]), shown

    @property
    def fingerprint(self) -> str:
        leaf = x509.load_pem_x509_certificate(self.client.certificate)
        return leaf.fingerprint(SHA256()).hex()


def files(folder: Path) -> OutgoingFiles:
    return OutgoingFiles(
        ca=str(folder / "ca.pem"),
        certificate=str(folder / "cert.pem"),
        key=str(folder / "key.pem"),
        names=NAMES,
    )


async def greeted(port: int, context: ssl.SSLContext) -> bool:
    """Dial once; whether both sides took each other."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        said = await reader.read()
        writer.close()
    except (OSError, ssl.SSLError):
        return False
    return said == b"hello"


def test_the_next_handshake_uses_what_was_read_last(run: Run, tmp_path: Path) -> None:
    """The one context that a library was given: other authority, other pair, and the authority before is trusted no more."""
    old, new = World("old", tmp_path), World("new", tmp_path)
    old.become()
    told = Told()
    tls = OutgoingTls("etcd", files(tmp_path), told.reporting)
    context = tls.context

    async def scenario() -> None:
        async with old.serving() as (before, came_before), new.serving() as (after, came_after):
            assert await greeted(before, context)
            new.become()
            assert await greeted(before, context), "nothing was read yet"
            assert not await greeted(after, context)
            assert tls.reload()
            assert await greeted(after, context)
            assert not await greeted(before, context)
            assert came_before == [old.fingerprint] * 2
            assert came_after == [new.fingerprint]

    run(scenario())
    assert told.counts == {("tls_reloads", "etcd done"): 1}
    assert new.fingerprint in told.text()
    ((name, label, left),) = tls.gauges()
    assert (name, label, left > 0) == ("tls_certificate_expires_seconds", "etcd client", True)


def spoilt_ca(folder: Path) -> None:
    (folder / "ca.pem").write_text("nothing")


def no_ca(folder: Path) -> None:
    (folder / "ca.pem").unlink()


def no_key(folder: Path) -> None:
    (folder / "key.pem").unlink()


def another_key(folder: Path) -> None:
    (folder / "key.pem").write_bytes(World("another", folder).client.key)


def expired(folder: Path) -> None:
    ended = datetime.now(UTC) - HOUR
    issued = Authority("late", 1).issue(
        "client", CLIENT_AUTH, valid_from=ended - HOUR, valid_until=ended
    )
    (folder / "cert.pem").write_bytes(issued.certificate)
    (folder / "key.pem").write_bytes(issued.key)


SPOILS = [
    (spoilt_ca, "tls_file_unreadable", "QIM_X_CA"),
    (no_ca, "tls_file_unreadable", "QIM_X_CA"),
    (no_key, "tls_file_unreadable", "QIM_X_KEY"),
    (another_key, "tls_key_mismatch", "QIM_X_CERT"),
    (expired, "tls_expired", "QIM_X_CERT"),
]


@pytest.mark.parametrize(("spoil", "code", "named"), SPOILS)
def test_what_is_bad_is_told_and_the_old_pair_stays(
    tmp_path: Path, spoil: Callable[[Path], None], code: str, named: str
) -> None:
    world = World("old", tmp_path)
    world.become()
    told = Told()
    tls = OutgoingTls("redis message", files(tmp_path), told.reporting)
    before = tls.current
    spoil(tmp_path)
    assert not tls.reload()
    assert tls.current is before
    ((level, event, fields),) = told.lines
    assert (level, event) == ("error", "certificates not reloaded, the old ones stay")
    assert (fields["tls"], fields["code"]) == ("redis message", code)
    assert named in str(fields["why"])

    async def scenario() -> None:
        async with world.serving() as (port, _):
            assert await greeted(port, tls.context)

    asyncio.run(scenario())


@pytest.mark.parametrize(("spoil", "code", "named"), SPOILS)
def test_a_start_with_what_is_bad_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], code: str, named: str
) -> None:
    World("old", tmp_path).become()
    spoil(tmp_path)
    with pytest.raises(StartRefused) as refused:
        read_outgoing(files(tmp_path))
    assert (refused.value.code, named in refused.value.what) == (code, True)


@pytest.mark.parametrize("half", ["certificate", "key"])
def test_half_a_pair_is_refused(tmp_path: Path, half: str) -> None:
    World("old", tmp_path).become()
    with pytest.raises(StartRefused) as refused:
        read_outgoing(replace(OutgoingFiles(), **{half: str(tmp_path / "cert.pem")}))
    assert refused.value.code == "tls_half_pair"


def test_a_certificate_that_vouches_for_itself_is_the_servers_to_judge(tmp_path: Path) -> None:
    """As `openssl req -x509` makes one: an authority by its flags, no clientAuth, and good enough where the server knows it."""
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "myself")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - HOUR, now + HOUR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
        .public_bytes(Encoding.PEM)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for file, data in (("cert", made), ("ca", made), ("key", private)):
        (tmp_path / f"{file}.pem").write_bytes(data)
    _, leaves = read_outgoing(files(tmp_path))
    assert leaves["client"].subject == "CN=myself"


def test_without_files_the_systems_roots_are_trusted(tmp_path: Path) -> None:
    found, leaves = read_outgoing(OutgoingFiles())
    assert leaves == {}
    assert (found.ca, found.certificate, found.key) == (b"", b"", b"")
    assert found.context.verify_mode is ssl.CERT_REQUIRED and found.context.check_hostname
    assert found.context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_blocking_sockets_are_wrapped_by_the_latest_too(tmp_path: Path) -> None:
    """As the archive's driver does."""
    old, new = World("old", tmp_path), World("new", tmp_path)
    old.become()
    tls = OutgoingTls("archive", files(tmp_path))

    def dialled(port: int) -> bytes:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
            tls.context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
        ):
            return wrapped.recv(16)

    async def scenario() -> None:
        async with new.serving() as (port, _):
            with pytest.raises(ssl.SSLError):
                await asyncio.to_thread(dialled, port)
            new.become()
            assert tls.reload()
            assert await asyncio.to_thread(dialled, port) == b"hello"

    asyncio.run(scenario())


def test_a_client_library_keeps_its_own_copy_of_the_files_bytes(tmp_path: Path) -> None:
    """gRPC takes bytes: those of one reading belong together, and another reading is another object."""
    world = World("old", tmp_path)
    world.become()
    tls = OutgoingTls("etcd", files(tmp_path))
    first = tls.current
    assert (first.ca, first.certificate, first.key) == (
        world.authority.certificate,
        world.client.certificate,
        world.client.key,
    )
    shutil.copy(tmp_path / "ca.pem", tmp_path / "same.pem")
    assert tls.reload()
    assert tls.current is not first
