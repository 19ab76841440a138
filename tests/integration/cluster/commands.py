"""Commands of an operator beside a cluster, told of it by their environment alone."""

import os
import subprocess
import sys
from collections.abc import Mapping

SECONDS_MAX = 300.0


def commanded(settings: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """`qim WORDS --cluster --json` with these QIM_ variables and no others."""
    return told(settings, *words, "--cluster", "--json")


def told(settings: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """`qim WORDS` with these QIM_ variables and no others."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QIM_")}
    return subprocess.run(
        [sys.executable, "-m", "qim", *words],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment | dict(settings),
        check=False,
    )
