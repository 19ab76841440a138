"""Worlds whose batches and windows hold a record or two: what production does once in thousands of messages is done at each."""

from typing import Any, Final

import pytest
from msgspec.structs import replace

from qim.sim import cast
from qim.sim.choice import choose
from qim.sim.generate import generate
from qim.sim.run import run
from qim.sim.scene import Kit

FEW: Final = (1, 2, 3)
TIGHT_PERCENT: Final = 35
WORLDS: Final = {"swarm": 40, "zombie": 15, "store": 15, "archive": 15}
LIMITS: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    "WriterConfig": {
        **dict.fromkeys(("reserve_items_max", "append_records_max", "mark_items_max"), FEW),
        **dict.fromkeys(("lookup_keys_max", "head_items_max", "fetch_records_max"), FEW),
        **dict.fromkeys(("apply_records_max", "pending_page_max", "trim_rows_max"), FEW),
        **dict.fromkeys(("restore_page_max", "membership_loads_max", "heads_max"), FEW),
        **dict.fromkeys(("history_items_max", "summary_rows_first", "unappended_max"), FEW),
        **dict.fromkeys(("cached_conversations_max", "waiters_max", "reads_inflight_max"), FEW),
        "apply_args_max": (30, 60),
        "append_bytes_max": (300, 2_000),
        "reserve_bytes_max": (600, 2_000),
        "commits_max": (4,),
    },
    "FanoutConfig": {
        **dict.fromkeys(("fetch_records_max", "window_records_max", "append_records_max"), FEW),
        **dict.fromkeys(("commit_records_max", "version_names_max", "version_members_max"), FEW),
        "window_bytes_max": (500, 3_000),
    },
    "MailboxConfig": {
        **dict.fromkeys(("fetch_records_max", "window_records_max", "claims_max"), FEW),
        **dict.fromkeys(("rows_max", "finish_items_max", "finish_queue_max"), FEW),
        **dict.fromkeys(("floor_claims_max", "trim_keys_max", "version_names_max"), FEW),
        **dict.fromkeys(("page_max", "reads_max", "bodies_max", "presence_users_max"), FEW),
        **dict.fromkeys(("delivered_items_max", "delivered_known_max", "push_users_max"), FEW),
        "body_cache_bytes_max": (1, 400),
        "batch_bytes_max": (100, 500),
    },
    "SessionConfig": {
        **dict.fromkeys(("fetch_records_max", "window_records_max", "rows_max"), FEW),
        **dict.fromkeys(("changes_max", "append_records_max", "version_names_max"), FEW),
        **dict.fromkeys(("known_max", "page_max", "owners_max", "ask_items_max"), FEW),
    },
    "ArchiverConfig": {
        **dict.fromkeys(("batch_rows_max", "fetch_records_max", "window_records_max"), FEW),
        "expire_rows_max": FEW,
    },
    "AuditConfig": {
        **dict.fromkeys(("window_records_max", "judged_recipients_max", "lookup_gap_max"), FEW),
        **dict.fromkeys(("reads_inflight_max", "mailbox_page_max"), FEW),
    },
}


def tightened(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Each seed has its own third of the limits."""
    for name, limits in LIMITS.items():
        config = getattr(cast, name)
        chosen: dict[str, int] = {}
        for field, few in limits.items():
            draw = choose(seed, "tight", (name, field))
            if draw % 100 < TIGHT_PERCENT:
                chosen[field] = few[draw // 100 % len(few)]

        def made(config: Any = config, chosen: dict[str, int] = chosen, **fields: Any) -> Any:
            return replace(config(**fields), **chosen)

        monkeypatch.setattr(cast, name, made)


@pytest.fixture(scope="module")
def kit() -> Kit:
    return Kit()


@pytest.mark.slow
@pytest.mark.parametrize("profile", WORLDS)
def test_worlds_of_tiny_batches_end_clean(
    profile: str, kit: Kit, seed_base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(seed_base, seed_base + WORLDS[profile]):
        with monkeypatch.context() as patched:
            tightened(patched, seed)
            report = run(generate(seed, profile), kit)
        assert report.clean, (f"-k {profile} --seed-base {seed}", report.identities())
