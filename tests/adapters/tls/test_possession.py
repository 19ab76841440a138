"""A command that judges its own certificate, as no process lives: as strict as a listener, and it wants the key."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from qim.adapters.rpc import ProcessRole
from qim.adapters.start_refused import StartRefused
from qim.adapters.tls.dev_chain import Authority, Issued
from qim.adapters.tls.internal_settings import InternalTlsSettings
from qim.adapters.tls.pair import CLIENT_AUTH, SERVER_AUTH
from qim.adapters.tls.possession import proved
from tests.adapters.tls.chain import HOUR, chain, stranger

ADMIN = ProcessRole.ADMIN


def told(**changed: str) -> InternalTlsSettings:
    """An admin's variables, some of them otherwise."""
    found = InternalTlsSettings.from_environment(chain().environment["admin"] | changed)
    assert found is not None
    return found


def shown(folder: Path, certificate: bytes, key: bytes) -> dict[str, str]:
    """The variables of this pair."""
    (folder / "leaf.pem").write_bytes(certificate)
    (folder / "leaf.key").write_bytes(key)
    return {
        "QIM_INTERNAL_TLS_CERT": str(folder / "leaf.pem"),
        "QIM_INTERNAL_TLS_KEY": str(folder / "leaf.key"),
    }


def refused(**changed: str) -> StartRefused:
    with pytest.raises(StartRefused) as raised:
        proved(told(**changed), ADMIN)
    assert raised.value.got and raised.value.expected and raised.value.command
    return raised.value


def test_an_admin_proves_it_by_certificate_and_key() -> None:
    assert proved(told(), ADMIN) == chain().fingerprints["admin"]


def test_the_certificate_alone_which_is_no_secret_proves_nothing(tmp_path: Path) -> None:
    certificate = (chain().folder / "admin-internal.pem").read_bytes()
    other = (chain().folder / "writer-internal.key").read_bytes()
    assert refused(**shown(tmp_path, certificate, other)).code == "tls_key_mismatch"
    without = refused(QIM_INTERNAL_TLS_KEY=str(tmp_path / "absent.key"))
    assert without.code == "tls_file_unreadable"


@pytest.mark.parametrize("role", [role for role in ProcessRole if role is not ADMIN])
def test_the_pair_of_a_process_is_none_of_an_admin(role: ProcessRole) -> None:
    names = ("QIM_INTERNAL_TLS_CERT", "QIM_INTERNAL_TLS_KEY")
    pair = {name: chain().environment[role.value][name] for name in names}
    error = refused(**pair)
    assert error.code == "admin_wrong_role"
    assert chain().fingerprints[role.value] in error.got


def test_nobody_is_an_admin_where_the_list_names_nobody() -> None:
    variables = dict(chain().environment["admin"])
    del variables["QIM_INTERNAL_ADMIN_CERT_SHA256"]
    settings = InternalTlsSettings.from_environment(variables)
    assert settings is not None
    with pytest.raises(StartRefused, match="admin_wrong_role"):
        proved(settings, ADMIN)


def listed(issued: Issued, folder: Path) -> dict[str, str]:
    """Its pair, and its SHA-256 in the list: what is left to judge is the chain."""
    pair = shown(folder, issued.certificate, issued.key)
    return pair | {"QIM_INTERNAL_ADMIN_CERT_SHA256": issued.fingerprint}


def test_a_certificate_of_another_ca_though_the_list_names_it(tmp_path: Path) -> None:
    error = refused(**listed(stranger("Q-IM admin"), tmp_path))
    assert error.code == "admin_certificate_ca"


def test_an_expired_certificate_and_one_for_servers(tmp_path: Path) -> None:
    authority, now = Authority("Q-IM test client CA", 1), datetime.now(UTC)
    expired = authority.issue(
        "Q-IM admin", CLIENT_AUTH, valid_from=now - 2 * HOUR, valid_until=now - HOUR
    )
    assert refused(**listed(expired, tmp_path)).code == "tls_expired"
    server = authority.issue("Q-IM admin", SERVER_AUTH, valid_until=now + HOUR)
    assert refused(**listed(server, tmp_path)).code == "tls_purpose"
