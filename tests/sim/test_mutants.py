"""Each mutant must bind, and be killed by one of its right checks under the generic swarm profile.

pytest tests/sim/test_mutants.py --mutants all        # or a name; the default is a sample
"""

from pathlib import Path

import pytest

from qim.sim.hunt import hunt
from qim.sim.mutants import Mutant, applied
from qim.sim.plan import decode_plan
from qim.sim.run import run
from qim.sim.scene import Kit
from tests.sim.mutants.board import board
from tests.sim.mutants.rare import rare
from tests.sim.mutants.rewriting import Unbound, rescript, rewrite

SEEDS_MAX = 1_200
FIRST_SEED = 5_000
SAMPLE = (
    "append_retried_after_unknown",
    "replay_skipped_on_restart",
    "ack_before_mark",
    "append_order_broken",
    "store_reset_ignored_by_mailbox",
    "w_moved_by_finish_dispatch",
    "claims_ignored",
    "checkpoint_before_its_fence",
    "unknown_version_dead_lettered",
    "silence_fails_a_row",
    "entries_never_refreshed",
    "kick_by_the_new_epoch",
)
SAVED = Path(__file__).parent / "regressions"
RARE = rare()
BOARD = {mutant.name: mutant for mutant in board()}


def chosen(config: pytest.Config) -> tuple[str, ...]:
    asked: str = config.getoption("--mutants")
    if asked == "all":
        return tuple(BOARD)
    return SAMPLE if asked == "sample" else (asked,)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "hunted" in metafunc.fixturenames:
        metafunc.parametrize("hunted", chosen(metafunc.config))


def test_the_board_binds_and_is_as_long_as_promised() -> None:
    assert len(BOARD) >= 34
    for mutant in BOARD.values():
        assert mutant.overrides or mutant.scripts, mutant.name
        assert mutant.checks, mutant.name


@pytest.mark.slow
def test_a_mutant_is_killed_by_a_right_check(hunted: str) -> None:
    mutant: Mutant = BOARD[hunted]
    kill = hunt(mutant, range(FIRST_SEED, FIRST_SEED + SEEDS_MAX))
    assert kill.killed, f"{mutant.name} survived {kill.seeds} seeds; fired: {kill.wrong}"


@pytest.mark.parametrize("world", RARE)
def test_a_rare_mutant_is_killed_in_its_saved_world(world: str) -> None:
    mutant = RARE[world]
    plan = decode_plan((SAVED / f"{world}.json").read_bytes())
    fired = {check for check, _ in run(plan, Kit(mutant.scripts), mutant.overrides).identities()}
    assert fired & mutant.checks, f"{mutant.name} survived; fired: {sorted(fired)}"


def test_what_is_no_longer_written_so_does_not_bind() -> None:
    with pytest.raises(Unbound):
        rewrite("qim.core.writer.opening:Opening.on_lease", ("if nothing of this kind", ""))
    with pytest.raises(Unbound):
        rewrite("qim.core.writer.opening:Opening.no_such_rule", ("a", "b"))
    with pytest.raises(Unbound):
        rescript("open_source", ("nothing of this kind", ""))


def test_an_override_ends_with_its_run() -> None:
    mutant = BOARD["no_barrier"]
    before = [override.function.__code__ for override in mutant.overrides]
    with applied(mutant.overrides):
        assert [o.function.__code__ for o in mutant.overrides] != before
    assert [o.function.__code__ for o in mutant.overrides] == before
