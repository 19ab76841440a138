"""Parameters: the contract's defaults, their legal order, and messages that say what to do."""

import msgspec
import pytest

from qim.core.contract import params as p
from qim.core.contract.params import DEFAULT, Parameters, ParametersInvalid


def changed(**values: object) -> Parameters:
    return msgspec.structs.replace(DEFAULT, **values)


def test_defaults_are_those_of_the_contract_and_legal() -> None:
    assert DEFAULT.validate() == ()
    assert DEFAULT.require_valid() is DEFAULT
    assert (DEFAULT.virtual_bucket_count, DEFAULT.lane_count, DEFAULT.shard_count) == (
        65536,
        64,
        64,
    )
    assert (DEFAULT.group_members_max, DEFAULT.membership_broadcast_max) == (1000, 500)
    assert DEFAULT.dedupe_window_ms == 7_200_000
    assert (DEFAULT.not_after_ms, DEFAULT.not_after_slack_ms) == (3_600_000, 300_000)
    assert DEFAULT.hot_window_ms == DEFAULT.read_back_ms == 604_800_000
    assert DEFAULT.default_retention_ms == DEFAULT.mailbox_retention_ms == 2_592_000_000
    assert (DEFAULT.lease_ttl_ms, DEFAULT.lease_renew_ms, DEFAULT.lease_margin_ms) == (
        10_000,
        3_000,
        1_000,
    )
    assert (DEFAULT.heartbeat_ms, DEFAULT.idle_kill_ms, DEFAULT.unauthenticated_max_ms) == (
        30_000,
        90_000,
        10_000,
    )
    assert (
        DEFAULT.fanout_batch_max,
        DEFAULT.archiver_batch_max,
        DEFAULT.refreeze_attempts_max,
    ) == (512, 512, 3)
    assert (DEFAULT.body_bytes_max, DEFAULT.batch_bytes_max, DEFAULT.frame_bytes_max) == (
        131072,
        262144,
        524288,
    )
    assert (DEFAULT.page_default, DEFAULT.page_max, DEFAULT.pulls_inflight_max) == (100, 500, 4)
    assert (
        DEFAULT.outbound_frames_max,
        DEFAULT.outbound_batches_max,
        DEFAULT.outbound_bytes_max,
    ) == (256, 4, 262144)
    assert (DEFAULT.slo_send_ack_ms, DEFAULT.slo_end_to_end_ms) == (150, 300)


@pytest.mark.parametrize("rule", p.ORDER, ids=lambda rule: f"{rule.smaller}<{rule.greater}")
def test_every_order_is_checked_at_its_border(rule: p.Order) -> None:
    equal = changed(**{rule.smaller: 1000, rule.greater: 1000})
    above = changed(**{rule.smaller: 1001, rule.greater: 1000})
    below = changed(**{rule.smaller: 999, rule.greater: 1000})
    broken = [(f.name, rule.greater in f.expected) for f in above.order_faults()]
    assert (rule.smaller, True) in broken
    assert (
        (rule.smaller, True) in [(f.name, rule.greater in f.expected) for f in equal.order_faults()]
    ) is (not rule.may_equal)
    assert (rule.smaller, True) not in [
        (f.name, rule.greater in f.expected) for f in below.order_faults()
    ]


@pytest.mark.parametrize("row", p.RANGES, ids=lambda row: row[0])
def test_every_range_is_checked_at_its_border(row: tuple[str, int, int]) -> None:
    name, least, greatest = row
    assert least <= getattr(DEFAULT, name) <= greatest
    for value, legal in (
        (least - 1, False),
        (least, True),
        (greatest, True),
        (greatest + 1, False),
    ):
        named = [fault for fault in changed(**{name: value}).range_faults() if fault.name == name]
        assert (named == []) is legal, value


@pytest.mark.parametrize(("renew_ms", "legal"), [(8_999, True), (9_000, False)])
def test_a_lease_is_renewed_while_it_may_still_be_used(renew_ms: int, legal: bool) -> None:
    faults = changed(lease_renew_ms=renew_ms).validate()
    assert [fault.name for fault in faults] == ([] if legal else ["lease_renew_ms"])


@pytest.mark.parametrize("name", ["shard_count", "outbox_partition_count"])
@pytest.mark.parametrize("count", [0, 3, 65, 131072])
def test_counts_are_powers_of_two(name: str, count: int) -> None:
    (fault,) = changed(**{name: count}).validate()
    assert fault.name == name
    assert "power of two" in fault.expected


def test_backends_are_known_ones() -> None:
    (fault,) = changed(message_store_backend="mysql").validate()
    assert str(fault) == (
        "message_store_backend is mysql, expected tiered or redis: set message_store_backend to one of these"
    )


def test_all_faults_are_told_at_once_with_got_expected_and_remedy() -> None:
    bad = changed(dedupe_window_ms=8 * p.DAY_MS, shard_count=3)
    with pytest.raises(ParametersInvalid) as caught:
        bad.require_valid()
    assert [fault.name for fault in caught.value.faults] == ["dedupe_window_ms", "shard_count"]
    assert "dedupe_window_ms is 691200000, expected below hot_window_ms (604800000)" in str(
        caught.value
    )
    assert "lower dedupe_window_ms or raise hot_window_ms" in str(caught.value)


def test_compressed_windows_keep_the_order_though_they_leave_the_ranges() -> None:
    compressed = changed(
        not_after_slack_ms=50, not_after_ms=500, dedupe_window_ms=1000, hot_window_ms=2000,
        default_retention_ms=4000, mailbox_retention_ms=4000, mailbox_day_ms=1000, read_back_ms=3000,
    )  # fmt: skip
    assert compressed.order_faults() == ()
    assert {"hot_window_ms", "mailbox_day_ms"} <= {
        fault.name for fault in compressed.range_faults()
    }


def test_recovery_windows_must_be_said_and_covered() -> None:
    def names(
        parameters: Parameters, outbox: int | None, dispatch: int | None
    ) -> list[tuple[str, str]]:
        faults = parameters.recovery_faults(
            outbox_log_retention_ms=outbox, dispatch_log_retention_ms=dispatch
        )
        return [(fault.name, fault.got) for fault in faults]

    assert names(DEFAULT, None, None) == [
        ("outbox_recovery_window_ms", "not set"), ("dispatch_recovery_window_ms", "not set"),
    ]  # fmt: skip
    said = changed(outbox_recovery_window_ms=1000, dispatch_recovery_window_ms=2000)
    assert names(said, None, None) == []
    assert names(said, 1000, 2000) == []
    assert names(said, 999, 1999) == [
        ("outbox_recovery_window_ms", "1000"),
        ("dispatch_recovery_window_ms", "2000"),
    ]


def test_shared_digest_is_frozen_and_covers_exactly_the_shared_ones() -> None:
    assert DEFAULT.shared_digest().hex() == "1adcfaa55b00ff7a95037b1134de86b5"
    for field in msgspec.structs.fields(Parameters):
        value = getattr(DEFAULT, field.name)
        other = changed(**{field.name: f"{value}x" if isinstance(value, str) else (value or 0) + 1})
        assert (other.shared_digest() != DEFAULT.shared_digest()) is (field.name in p.SHARED), (
            field.name
        )


def test_every_name_carries_its_unit_or_is_a_count() -> None:
    units = ("_ms", "_max", "_count", "_backend", "_width", "page_default")
    assert [f.name for f in msgspec.structs.fields(Parameters) if not f.name.endswith(units)] == []
