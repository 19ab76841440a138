"""Is whoever starts this command an admin? Judged as a listener would, where no process lives that could be asked.

A handshake of TLS 1.3 with ourselves, in memory: the key must sign for the certificate, the configured CA must have issued
it, and its SHA-256 must stand in the list of the role.
"""

import ssl
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from qim.adapters.rpc.roles import ProcessRole
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.contexts import tls13
from qim.adapters.tls.dev_chain import Authority
from qim.adapters.tls.faults import handshake_fault
from qim.adapters.tls.internal_settings import (
    CLIENT_CA_NAME,
    PAIR_NAMES,
    InternalTlsSettings,
    certificates_name,
)
from qim.adapters.tls.pair import CLIENT_AUTH, SERVER_AUTH, load_authorities, load_pair

TURNS_MAX: Final = 16
_DAY: Final = timedelta(days=1)


def proved(settings: InternalTlsSettings, role: ProcessRole) -> str:
    """The SHA-256 of the certificate that proves ``role``. Raises StartRefused: admin_certificate_…, admin_wrong_role."""
    client = tls13(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE  # the other side is ourselves
    load_pair(client, settings.pair, CLIENT_AUTH)
    try:
        certificate = _shown(_judge(settings.client_ca), client)
    except ssl.SSLError as error:
        code, why = handshake_fault(error)
        raise _refused(settings, f"admin_{code}", why, f"issued by {CLIENT_CA_NAME}") from None
    digest = sha256(certificate).hexdigest()
    if digest not in settings.certificates.get(role, ()):
        name = certificates_name(role)
        got = f"of SHA-256 {digest}, which is not in {name}"
        raise _refused(settings, f"{role}_wrong_role", got, f"in {name}")
    return digest


def _judge(client_ca: Path) -> ssl.SSLContext:
    """A listener's context, with a certificate of this moment that nobody looks at."""
    context = tls13(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    load_authorities(context, client_ca, CLIENT_CA_NAME)
    until = datetime.now(UTC) + _DAY
    issued = Authority("Q-IM command", 1).issue("Q-IM command", SERVER_AUTH, valid_until=until)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "pair.pem"
        file.touch(mode=0o600)
        file.write_bytes(issued.key + issued.certificate)
        context.load_cert_chain(file)
    return context


def _shown(judge: ssl.SSLContext, client: ssl.SSLContext) -> bytes:
    """The leaf (DER) that a whole handshake proved. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = judge.wrap_bio(to_server, to_client, server_side=True)
    dialler = client.wrap_bio(to_client, to_server)
    for _ in range(TURNS_MAX):
        for side in (dialler, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if side is server:
                certificate = server.getpeercert(binary_form=True)
                assert certificate is not None, "CERT_REQUIRED"
                return certificate
    raise ssl.SSLError("the handshake does not end")


def _refused(settings: InternalTlsSettings, code: str, got: str, expected: str) -> StartRefused:
    return StartRefused(
        code,
        f"the admin's certificate {settings.pair.certificate} ({PAIR_NAMES[0]})",
        got=got,
        expected=expected,
        command=f"openssl x509 -in {settings.pair.certificate} -noout -subject -issuer -dates -purpose",
    )
