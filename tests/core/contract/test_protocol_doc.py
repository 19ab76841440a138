"""docs/protocol.md says what the code says: regenerate with `python -m qim.cli.protocol_doc`."""

import sys
from pathlib import Path

import pytest

from qim.cli import protocol_doc
from qim.core.contract.errors import ErrorCode
from qim.core.contract.frames import FRAMES

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"


def test_the_page_is_the_rendered_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == protocol_doc.render()


def test_every_frame_field_and_error_is_on_it() -> None:
    page = protocol_doc.render()
    for kind in FRAMES:
        assert f"### {kind.NAME}\n" in page
        section = page.split(f"### {kind.NAME}\n")[1].split("\n### ")[0]
        assert all(f"| {name} |" in section for name in kind.__struct_fields__)
    assert all(f"| {int(code)} | {code.name} |" in page for code in ErrorCode)


def test_main_writes_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["protocol_doc", str(tmp_path / "page.md")])
    protocol_doc.main()
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == protocol_doc.render()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(sys, "argv", ["protocol_doc"])
    protocol_doc.main()
    assert (tmp_path / "docs" / "protocol.md").exists()
