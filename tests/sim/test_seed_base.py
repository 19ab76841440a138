"""The seed base that a run's header tells is the one that its worlds begin at, also in workers of xdist."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TELLING = """
def test_of_a_worker(seed_base: int, worker_id: str) -> None:
    raise AssertionError(f"{worker_id} begins at {seed_base}")
"""


def test_workers_begin_at_the_base_of_the_header(tmp_path: Path) -> None:
    (tmp_path / "test_telling.py").write_text(TELLING, "utf-8")
    command = [
        *(sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml")),
        *("-p", "tests.conftest", "-p", "tests.sim.conftest", "-p", "no:cacheprovider"),
        *("-n", "2", "--dist", "each", str(tmp_path)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    [header] = re.findall(r"^simulator: --seed-base (\d+)$", done.stdout, re.M)
    begun = set(re.findall(r"^E +AssertionError: (gw\d+) begins at (\d+)$", done.stdout, re.M))
    assert begun == {("gw0", header), ("gw1", header)}
