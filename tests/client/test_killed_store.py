"""kill -9 in the middle of commits: what was answered stands, and no order stands by half."""

import subprocess
import sys
from pathlib import Path

from qim.client.local_store import LocalStore
from qim.core.ports.local_store import AnchorsRead, LoadLocal, LocalLoaded, ReadAnchors
from tests.client.local_rows import id16, message, pending

ROOT = Path(__file__).parents[2]
KILLS = 8


def killed_after(path: Path, first: int, lines: int) -> list[str]:
    """Lines the child wrote until it was killed while it goes on committing."""
    child = subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.client.commit_until_killed", str(path), str(first)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    written = [child.stdout.readline() for _ in range(lines)]
    child.kill()
    written += child.stdout.readlines()
    child.stdout.close()
    child.wait()
    return [line.strip() for line in written if line.endswith("\n")]


def test_what_was_answered_survives_and_nothing_stands_by_half(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    first = 1
    for kill in range(KILLS):
        lines = killed_after(path, first, lines=3 + 5 * kill)
        answered = {(kind, int(number)) for kind, number in map(str.split, lines)}
        store = LocalStore(path)
        found, anchors = store.execute([LoadLocal(op=1), ReadAnchors(op=2, after=b"", limit=9)])
        assert isinstance(found, LocalLoaded)
        assert isinstance(anchors, AnchorsRead)
        last = int(found.cursor or b"0")
        assert last >= max(n for kind, n in answered if kind == "batch")
        assert found.order_last >= max(n for kind, n in answered if kind == "pending")
        # the cursor stands for its messages, their anchor and the settled rows, all or nothing
        everything = store.messages(id16(2, 1), 1_000_000)
        assert everything == [message(n) for n in range(3, last * 3 + 3)]
        assert found.covered_through == last
        assert anchors.anchors == ((id16(2, 1), last * 3 + 2),)
        assert found.pending == tuple(pending(n) for n in range(last + 1, found.order_last + 1))
        first = last + 1
        store.close()
