"""The one line on standard output by which a service says that it serves."""

import json
import sys
from collections.abc import Mapping


def say_ready(told: Mapping[str, object]) -> None:
    """In one write, newline and all: log lines of another thread may go to the same file, and Python may be unbuffered."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
