"""The Kafka log over TLS with a name and password, on a real broker; and what it says where one of them is wrong."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from qim.adapters.kafka.log import KafkaLog
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.outgoing import OutgoingFiles, OutgoingTls
from qim.core.ports.log import Appended
from tests.adapters.log.kafka_asked import KafkaAsked, settings_for
from tests.adapters.log.logs import Asker
from tests.integration.testbed.kafka import KafkaBroker

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("kafka")]

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def certified(folder: Path) -> tuple[Path, str, str]:
    """A certificate for 127.0.0.1 that vouches for itself: its file, and both parts as a properties file has them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain = made.public_bytes(serialization.Encoding.PEM)
    (folder / "broker.pem").write_bytes(chain)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    one_line = [part.decode().strip().replace("\n", "\\n") for part in (chain, private)]
    return folder / "broker.pem", one_line[0], one_line[1]


class Trusted:
    """A broker with a secure listener, and how to reach it."""

    def __init__(self, folder: Path) -> None:
        self.ca, chain, key = certified(folder)
        self.broker = KafkaBroker(
            folder / "broker",
            secure={
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
                "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
                "listener.name.secure.plain.sasl.jaas.config": f'{PLAIN} required user_qim="right";',
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": chain,
                "ssl.keystore.key": key,
            },
            scram=["SCRAM-SHA-256=[name=qim,password=salted]"],
        )

    def fields(self, **more: Any) -> dict[str, Any]:
        """Of the settings."""
        return {
            "ssl_context": OutgoingTls("kafka", OutgoingFiles(ca=str(self.ca))).context,
            "sasl_mechanism": "PLAIN",
            "sasl_username": "qim",
            "sasl_password": "right",
            **more,
        }


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trusted]:
    chosen = Trusted(tmp_path_factory.mktemp("trusted"))
    chosen.broker.start()
    yield chosen
    chosen.broker.kill()


@pytest.mark.parametrize(
    ("mechanism", "password"),
    [("PLAIN", "right"), ("SCRAM-SHA-256", "salted")],
)
def test_everything_goes_over_tls_with_a_name_and_password(
    trusted: Trusted, mechanism: str, password: str
) -> None:
    told = trusted.fields(sasl_mechanism=mechanism, sasl_password=password)
    kafka = KafkaAsked(trusted.broker.secure_address, **told)
    try:
        asker = Asker(kafka)
        assert isinstance(asker.append(b"a"), Appended)
        waiting = asker.start_fetch(1, wait_ms=60_000)
        asker.append(b"b")
        assert kafka.answers(waiting)[0].records[0].value == b"b"
        assert asker.ends().end == 2
    finally:
        kafka.close()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"sasl_password": "wrong"}, "SaslAuthenticationFailed"),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "SaslAuthenticationFailed"),
        (
            {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "mallory"},
            "SaslAuthenticationFailed",
        ),
        ({"sasl_mechanism": "SCRAM-SHA-512"}, "UnsupportedSaslMechanism"),
        ({"ssl_context": ssl.create_default_context()}, "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_what_is_not_trusted_is_refused_at_once(
    trusted: Trusted, wrong: dict[str, Any], named: str
) -> None:
    settings = settings_for(
        trusted.broker.secure_address, **trusted.fields(**wrong), start_ms=600_000
    )
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(StartRefused) as refused:
            loop.run_until_complete(KafkaLog(settings, loop).start())
        assert refused.value.code == "kafka_not_trusted"
        assert named in refused.value.got
        assert trusted.broker.secure_address in refused.value.command
    finally:
        loop.close()


def test_plaintext_to_a_tls_listener_ends_in_time(trusted: Trusted) -> None:
    settings = settings_for(trusted.broker.secure_address, start_ms=200, connect_ms=500)
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(StartRefused) as refused:
            loop.run_until_complete(KafkaLog(settings, loop).start())
        assert refused.value.code == "kafka_unreachable"
    finally:
        loop.close()
