"""`qim certs dev`: what it writes serves, keys are for their owner's eyes, and nothing is written over."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography import x509

from qim.adapters.rpc import ProcessRole
from qim.adapters.rpc.roles import callers_of
from qim.adapters.tls.client_facing import ClientFacingTls
from qim.adapters.tls.internal import InternalTls
from qim.adapters.tls.internal_settings import InternalTlsSettings
from qim.cli.main import main
from qim.client import client_tls_from_environment
from qim.services.settings import read_settings


def made(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, object]:
    assert main(["certs", "dev", "--out", str(folder), "--json", *more]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def variables(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().splitlines())


def test_every_role_can_serve_with_its_variables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = made(tmp_path / "certs", capsys)
    digests = told["sha256"]
    assert isinstance(digests, dict) and set(digests) == {role.value for role in ProcessRole}
    assert len(set(digests.values())) == len(ProcessRole)
    for role in ProcessRole:
        own = variables(tmp_path / "certs" / f"{role}.env")
        settings = InternalTlsSettings.from_environment(own)
        assert settings is not None
        tls = InternalTls(settings, role)
        left = {label: seconds for _, label, seconds in tls.gauges()}
        assert ("internal server" in left) == bool(callers_of(role))
        assert all(364 * 86_400 < seconds <= 365 * 86_400 for seconds in left.values())
    gateway = variables(tmp_path / "certs" / "gateway.env")
    assert ClientFacingTls.from_environment(gateway) is not None
    assert client_tls_from_environment(variables(tmp_path / "certs" / "client.env")) is not None


def test_keys_are_private_and_there_are_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "certs", capsys)
    keys = sorted(path.name for path in (tmp_path / "certs").glob("*.key"))
    assert keys == sorted([*(f"{role}-internal.key" for role in ProcessRole), "gateway.key"])
    for path in (tmp_path / "certs").iterdir():
        private = b"PRIVATE KEY" in path.read_bytes()
        assert private == (path.suffix == ".key")
        assert path.stat().st_mode & 0o777 == (0o600 if private else 0o644)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="this machine has no openssl command")
def test_the_fingerprint_is_what_the_documented_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = made(tmp_path / "certs", capsys)["sha256"]
    assert isinstance(digests, dict)
    der = subprocess.run(
        ["openssl", "x509", "-in", tmp_path / "certs" / "writer-internal.pem", "-outform", "DER"],
        check=True,
        capture_output=True,
    ).stdout
    printed = subprocess.run(
        ["openssl", "dgst", "-sha256", "-r"], input=der, check=True, capture_output=True
    ).stdout.decode()
    assert printed.split()[0] == digests["writer"]


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "certs"
    made(folder, capsys)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(["certs", "dev", "--out", str(folder)]) == 2
    assert "never written over" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


def test_lines_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["certs", "dev", "--out", str(tmp_path / "certs"), "--name", "im.example.org"]
    assert main([*words, "--days", "9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(bool(re.fullmatch(r"# [0-9a-f]{64}  \w+", line)) for line in lines) == 8
    names = [line.split("=")[0] for line in lines if not line.startswith("#")]
    assert names.count("QIM_INTERNAL_TLS_CLIENT_CA") == 1 and "QIM_TLS_CERT" in names
    assert names.count("QIM_INTERNAL_TLS_KEY") == len(ProcessRole)


def test_days_have_an_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certs", "dev", "--out", str(tmp_path / "certs"), "--days", "4000"]) == 2
    assert "at most 3650" in capsys.readouterr().err
    assert not (tmp_path / "certs").exists()


def test_each_role_has_a_file_that_serve_reads_and_a_chain_that_is_there_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"
    made(folder, capsys)
    for role in ProcessRole:
        reading = read_settings({}, folder / f"{role}.toml")
        assert not reading.faults
        own = variables(folder / f"{role}.env")
        assert own.items() <= reading.settings.told().items()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(["certs", "dev", "--out", str(folder), "--keep"]) == 0
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["", "a b", "x..y", "10.0.0.0/8", "https://im.example.org"])
def test_a_name_that_is_none_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = tmp_path / "certs"
    assert main(["certs", "dev", "--out", str(folder), "--name", name]) == 2
    assert capsys.readouterr().out == ""
    assert not folder.exists()


def test_a_name_in_any_script_is_certified_as_it_is_dialled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "certs", capsys, "--name", "müller.example", "--name", "*.example.org")
    leaf = x509.load_pem_x509_certificate((tmp_path / "certs" / "gateway.pem").read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = names.get_values_for_type(x509.DNSName)
    assert found == ["localhost", "xn--mller-kva.example", "*.example.org"]


def test_a_folder_with_a_blank_is_sourced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my certs"
    assert main(["certs", "dev", "--out", str(folder)]) == 0
    assert "set -a" in capsys.readouterr().err
    words = f"set -a; . '{folder}/admin.env'; printenv QIM_INTERNAL_TLS_CERT"
    shell = subprocess.run(["sh", "-c", words], check=True, capture_output=True, text=True)
    assert shell.stdout == f"{folder}/admin-internal.pem\n"
