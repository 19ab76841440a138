"""Days of a mailbox, and what retention takes of them (pipeline.md §3.4)."""

import pytest

from qim.core.contract.sequences import before_first, mailbox_seq
from qim.core.ports.store_mailbox import TrimMailbox
from tests.core.mailbox.bench import CONFIG, WALL, Bench, dispatch, replace
from tests.core.mailbox.shards import DAY, effects, until


def days_bench(append_days: tuple[int, ...]) -> Bench:
    bench = Bench()
    bench.now = 0
    for number, day in enumerate(append_days):
        bench.append(dispatch(number, users=(1, 2)), at=WALL + day * DAY)
    bench.hold()
    bench.run()
    return bench


def test_day_ranges_follow_the_append_times_and_never_go_back() -> None:
    bench = days_bench((0, 0, 2, 1, 3))
    first = WALL // DAY
    assert bench.store.days == [(first, 0), (first + 2, 2), (first + 3, 4)]


def test_whole_leading_days_beyond_retention_are_trimmed_and_nothing_else() -> None:
    bench = days_bench((0, 0, 1, 5))
    bench.append(dispatch(9, users=(1,)), at=WALL + 31 * DAY)
    bench.run()
    bench.pass_time(30 * DAY + 3_600_000)
    # WALL is 22:13 of its day: less than 30 days ago that day had not ended yet.
    assert bench.store.trim == 0
    bench.pass_time(3_600_000)
    assert bench.store.trim == mailbox_seq(1, 1)
    assert sorted(bench.mailbox(1)) == [mailbox_seq(1, n) for n in (2, 3, 4)]


def test_nothing_is_trimmed_while_clock_and_append_times_are_a_day_apart() -> None:
    bench = days_bench((0, 1, 2))
    bench.pass_time(90 * DAY)
    assert bench.store.trim == 0
    bench.append(dispatch(5, users=(1,)), at=WALL + 90 * DAY)
    bench.run()
    bench.pass_time(CONFIG.trim_ms)
    assert bench.store.trim == mailbox_seq(1, 1)


@pytest.mark.parametrize("behind_days", [WALL // DAY, 400, 31, 2])
def test_a_log_whose_clock_was_behind_loses_nothing_as_it_is_mended(behind_days: int) -> None:
    """No RTC: what came first was called older than retention, and it is minutes old."""
    bench = days_bench((-behind_days, 0))
    bench.pass_time(CONFIG.trim_ms)
    assert bench.store.trim == 0
    for days in range(1, 31):
        bench.append(dispatch(days, users=(1,)), at=WALL + days * DAY)
        bench.now = days * DAY
        bench.run()
        assert bench.store.trim == 0, f"{days} days old"
    bench.append(dispatch(31, users=(1,)), at=WALL + 31 * DAY)
    bench.run()
    bench.pass_time(DAY + CONFIG.trim_ms)
    assert bench.store.trim == mailbox_seq(1, 1)


def test_a_day_is_dropped_in_bounded_calls() -> None:
    bench = Bench(replace(CONFIG, trim_keys_max=3))
    bench.now = 0
    bench.append(dispatch(0, users=tuple(range(1, 11))), at=WALL)
    bench.append(dispatch(1, users=(1,)), at=WALL + DAY)
    bench.append(dispatch(2, users=(1,)), at=WALL + 40 * DAY)
    bench.hold()
    bench.run()
    bench.now = 40 * DAY
    bench.step()
    calls = 0
    while found := effects(bench, TrimMailbox):
        calls += 1
        bench.answer(found[0], "done")  # type: ignore[arg-type]
    assert calls == 4
    assert bench.store.days == [((WALL + days * DAY) // DAY, n) for n, days in ((1, 1), (2, 40))]


def test_a_trim_that_the_store_does_not_do_is_not_believed() -> None:
    bench = days_bench((0, 1, 40))
    bench.now = 40 * DAY
    bench.step()
    call = until(bench, TrimMailbox)
    assert isinstance(call, TrimMailbox)
    bench.store.base = before_first(1, 0)
    bench.answer(call, "done")
    assert bench.store.trim == 0
