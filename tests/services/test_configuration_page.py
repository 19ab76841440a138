"""docs/configuration.md: drawn from the code, and whole."""

import re
import sys
from pathlib import Path

import pytest

from qim.cli import config_doc
from qim.cli.config_doc import REFUSALS, document
from qim.services.cluster.shared import VARIABLES

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_says_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), "python -m qim.cli.config_doc"


FROM_ADAPTERS = {
    "tls_half_pair",
    "internal_tls_incomplete",
    "internal_server_name_missing",
    "internal_role_list_missing",
    "redis_address",
    "redis_unsafe_dev_elsewhere",
    "archive_hosts_invalid",
    "archive_keyspace_invalid",
    "archive_unsafe_dev_abroad",
    "webhook_url",
    "webhook_secret",
}
"""What adapters say of their settings, and a check asks them for: test_settings_refused.py meets each."""


def test_every_refusal_of_a_check_is_on_the_page() -> None:
    folder = Path(config_doc.__file__).parents[1] / "services" / "settings"
    source = "".join((folder / name).read_text() for name in ("checks.py", "reading.py"))
    raised = set(re.findall(r'(?:StartRefused|_login)\(\s*"([a-z_]+)"', source))
    raised |= {"config_obsolete", "store_backend_deprecated"}
    assert raised | FROM_ADAPTERS == set(re.findall(r"`([a-z_]+)`", REFUSALS)) - {"qim"}
    met = (Path(__file__).parent / "test_settings_refused.py").read_text()
    assert [code for code in sorted(FROM_ADAPTERS) if f'"{code}"' not in met] == []


def test_what_all_processes_share_is_marked() -> None:
    marked = set(re.findall(r"^\| `(\w+)` .*\*shared\* \|$", document(), re.MULTILINE))
    assert marked == set(VARIABLES.values())
    assert {"QIM_OUTBOX_RECOVERY_WINDOW_MS", "QIM_TENANT_RETENTION_DAYS"} <= marked


def test_the_page_is_written_where_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["config_doc", str(tmp_path / "page.md")])
    config_doc.main()
    assert (tmp_path / "page.md").read_text() == document()
