"""What every test shares: the command line of the campaigns and how Hypothesis runs.

The options of `tests/sim` are declared here because pytest reads options only from the conftest of
its start folder: `pytest`, `pytest tests` and `pytest tests/sim` must all know them.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from qim.adapters.start_refused import StartRefused

# Read when gRPC is imported: its fork handlers break children between fork and exec, and the test bed starts many.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# No timed assertions anywhere: two busy cores make any deadline a false alarm.
settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    # The same examples every time: a change is judged by what it does, not by its luck. `make hunt` tries new ones.
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough",
    parent=settings.get_profile("default"),
    max_examples=2_000,
    phases=tuple(Phase),
)
settings.register_profile(
    "hunt",
    parent=settings.get_profile("default"),
    derandomize=False,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
)
settings.load_profile(os.environ.get("QIM_HYPOTHESIS", "default"))

SEED_BASE = pytest.StashKey[int]()


@pytest.fixture(autouse=True, scope="session")
def every_refusal_is_whole() -> Iterator[None]:
    """Whatever a test makes a start refuse says what was found, what is needed and the command that mends it."""
    made = StartRefused.__init__

    def whole(self: StartRefused, code: str, what: str, **parts: str) -> None:
        told = {"code": code, "what": what, **parts}
        blank = sorted(name for name, text in told.items() if not text.strip())
        assert not blank, f"a refusal without {blank}: {told}"
        made(self, code, what, **parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StartRefused, "__init__", whole)
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Groups of xdist hold together: pytest 9.2 keeps a node's id where xdist 3.8 doesn't write it, and says nothing.

    Without this each test of a group goes to whichever worker is free, and each worker starts the servers of its own.
    """
    if not getattr(config.option, "loadgroup", False):
        return  # not a worker of `--dist loadgroup`
    for item in items:
        names = {str(mark.args[0]) for mark in item.iter_markers("xdist_group")}
        suffix = f"@{'_'.join(sorted(names))}"
        if not names or item.nodeid.endswith(suffix):
            continue
        item._id = type(item.id).parse(f"{item.nodeid}{suffix}")  # type: ignore[attr-defined]
        assert item.nodeid.endswith(suffix), "this pytest keeps ids elsewhere again"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("simulator")
    group.addoption(
        "--seeds",
        type=int,
        default=None,
        metavar="N",
        help="worlds a profile runs (default: what fits the ten minutes of `make test`)",
    )
    group.addoption(
        "--seed-base",
        type=int,
        default=None,
        metavar="SEED",
        help="first seed (default: a fresh one, printed in the header)",
    )
    group.addoption(
        "--mutants",
        default="sample",
        metavar="sample|all|NAME",
        help="which mutants must be killed",
    )


def seed_base_of(config: pytest.Config) -> int:
    """--seed-base, else a fresh one, the same for the whole run: a worker of xdist has that of who started it."""
    if SEED_BASE not in config.stash:
        given: int | None = config.getoption("--seed-base")
        if given is None:
            given = getattr(config, "workerinput", {}).get("seed_base")
        fresh = time.time_ns() // 1_000_000 % 10**8 * 1_000
        config.stash[SEED_BASE] = given if given is not None else fresh
    return config.stash[SEED_BASE]


def pytest_report_header(config: pytest.Config) -> str:
    return f"simulator: --seed-base {seed_base_of(config)}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """The header is the starter's, and the worlds run in its workers."""
    node.workerinput["seed_base"] = seed_base_of(node.config)
