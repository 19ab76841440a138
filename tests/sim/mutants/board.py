"""The mutants: each breaks one rule, names where it stands, and the set of checks that may rightly see it."""

from qim.sim.mutants import Mutant
from tests.sim.mutants.crowds import crowds
from tests.sim.mutants.making import LOST, mutant
from tests.sim.mutants.mended import mended
from tests.sim.mutants.presence import presence
from tests.sim.mutants.repaired import repaired
from tests.sim.mutants.rewriting import rescript, rewrite
from tests.sim.mutants.views import views
from tests.sim.mutants.windows import windows

TWICE = {"commit_once", "effective_once", "seq_unique", "append_order"}
"""Something is committed twice, or in another order than its numbers say."""
ORPHANED = {"audit_not_clean", "audit_ledger", "audit_blind"}


def board() -> list[Mutant]:
    """All of them; raises Unbound where a rule has moved."""
    return [
        *_openings(),
        *_commits(),
        *_resends(),
        *_fanout(),
        *_mailbox_store(),
        *_lanes(),
        *_replays(),
        *_edges(),
        *_fences(),
        *_opens(),
        *views(),
        *windows(),
        *presence(),
        *crowds(),
        *mended(),
        *repaired(),
    ]


def _openings() -> list[Mutant]:
    opening = "qim.core.writer.opening:Opening"
    return [
        mutant(
            "no_barrier",
            "pipeline §1.6 (c), §1.7: a late append of a lower epoch means nothing",
            TWICE | {"ack_coordinates", "settled_coordinates", "ack_without_append"} | LOST,
            rewrite(f"{opening}.flush", ("barrier_value(shard.epoch)", "barrier_value(0)")),
        ),
        mutant(
            "no_registry_check_after_open",
            "pipeline §1.6 (b): ask the registry again after OpenShard's answer",
            TWICE | {"ack_without_append", "mark_effective", "ineffective_applied"} | LOST,
            rewrite(f"{opening}.on_lease", ("if answer.epoch != shard.epoch:", "if False:")),
        ),
        mutant(
            "append_retried_after_unknown",
            "pipeline §1.5: Unknown of an append is a re-OPEN, never an append again",
            TWICE | {"ack_without_append", "receipts"} | LOST,
            rewrite(
                "qim.core.writer.machine:Writer._unknown",
                ("if call is Call.APPEND or call is Call.BARRIER:", "if call is Call.BARRIER:"),
            ),
        ),
        mutant(
            "replay_skipped_on_restart",
            "pipeline §1.6 (d): ApplyOutbox everything in [applied, b) before serving",
            TWICE | {"ack_coordinates", "version_unknown"} | LOST,
            rewrite(
                f"{opening}._advance",
                ("elif walk.applied >= walk.barrier:", "elif True:"),
                ("if walk.whole:", "if True:"),
            ),
        ),
    ]


def _commits() -> list[Mutant]:
    pipeline = "qim.core.writer.pipeline:Pipeline"
    return [
        mutant(
            "append_order_broken",
            "pipeline §1.3: within a conversation append order is seq order",
            {"append_order", "mark_effective", "version_unknown"} | LOST,
            rewrite(
                f"{pipeline}._append",
                ("records=tuple(records)", "records=tuple(reversed(records))"),
            ),
        ),
        mutant(
            "ack_before_mark",
            "pipeline §1.4: SEND_ACK only from COMMITTED",
            {"ack_after_mark", "ack_without_append"},
            rewrite(
                f"{pipeline}.on_appended",
                (
                    "orders.stage(commit, OUTBOXED)",
                    (
                        "orders.stage(commit, OUTBOXED)\n"
                        "        for waiter in () if commit.change else commit.waiters:\n"
                        "            orders.answer(waiter, SendDone(rid=waiter.rid, sent_at=commit.sent_at,"
                        " client_message_id=commit.client_message_id, message_id=commit.message_id,"
                        " conversation_id=commit.conversation_id, conversation_seq=commit.conversation_seq,"
                        " last_activity_id=commit.last_activity_id), 0)"
                    ),
                ),
            ),
        ),
    ]


def _resends() -> list[Mutant]:
    return [
        mutant(
            "dedupe_ignored",
            "pipeline §1.1: (tenant, sender, cmid) commits once, ever",
            TWICE | {"settled_coordinates"},
            rescript(
                "reserve_and_record",
                ("local held = taken[dkey] or call('GET', dkey)", "local held = taken[dkey]"),
            ),
            rescript("lookup_commits", ("call('GET', KEYS[key]) or ''", "''")),
        ),
        mutant(
            "store_reset_ignored_by_writer",
            "pipeline §0: every machine with store state re-OPENs on StoreReset",
            LOST | {"machine_died", "runaway"},
            rewrite(
                "qim.core.writer.machine:Writer._on_store_reset",
                ('refresh(orders, pending.shard, "store_reset")', "orders.retry(pending)"),
                ('refresh(orders, shard, "store_reset")', "pass"),
            ),
        ),
    ]


def _fanout() -> list[Mutant]:
    return [
        mutant(
            "checkpoint_before_its_fence",
            "pipeline §2: OpenSource raises the fence and returns the checkpoint in one script",
            {"fences", "receipts", "machine_died"} | ORPHANED | LOST,
            rescript("open_source", ("call('HSET', KEYS[2], 'e', ARGV[1], 'i', ARGV[3])", "")),
        ),
        mutant(
            "unknown_version_dead_lettered",
            "pipeline §2: a version the store doesn't have is NotYet, never poison",
            {"dead_letter", "receipts"} | ORPHANED | LOST,
            rewrite(
                "qim.core.fanout.machine:FanoutCoordinator._dispatch",
                (
                    "self._want_version(now, partition, item)\n            return False",
                    "item.outboxed, item.dead_letter = None, True\n            return True",
                ),
            ),
        ),
        mutant(
            "ineffective_dispatched",
            "pipeline §1.7: fanout skips what stands behind a barrier of a higher epoch",
            {"dispatch_without_record", "visible_before_outboxed", "receipt_of_nothing"},
            rewrite(
                "qim.core.fanout.admitting:admit",
                (
                    "entry if partition.filter.admits(entry) else None",
                    "(entry, partition.filter.admits(entry))[0]",
                ),
            ),
        ),
        mutant(
            "receipts_left_out",
            "pipeline §2: receipt before checkpoint, in one script",
            {"receipts"},
            rewrite(
                "qim.core.fanout.committing:commit_source",
                ("receipts=tuple(receipts)", "receipts=tuple(receipts[1:])"),
            ),
        ),
    ]


def _mailbox_store() -> list[Mutant]:
    return [
        mutant(
            "store_reset_ignored_by_mailbox",
            "pipeline §0: every machine with store state re-OPENs on StoreReset",
            LOST | {"runaway", "covered_through_gap", "machine_died"},
            rewrite(
                "qim.core.mailbox.machine:MailboxNode._on_shard_answer",
                (
                    "case StoreReset() | Trimmed():",
                    "case StoreReset(): self._flow.on_unknown(now, shard, what)\n        case Trimmed():",
                ),
            ),
            rewrite(
                "qim.core.mailbox.machine:MailboxNode._on_store_reset",
                ("for number in list(self._shards):", "for number in ():"),
            ),
            rewrite(
                "qim.core.mailbox.machine:MailboxNode._on_shared_answer",
                ("if isinstance(event, StoreReset) and shard.live:", "if False:"),
            ),
        ),
        mutant(
            "w_moved_by_finish_dispatch",
            "pipeline §3.2: FinishDispatch only marks, W moves with the rows alone",
            LOST
            | {"watermarks", "covered_through_gap", "mailbox_seq_regression_count", "machine_died"},
            rescript(
                "finish_dispatches",
                (
                    "local reply = {'K'}",
                    (
                        "local reply = {'K'}\n"
                        "local w = call('HGET', KEYS[2], 'w')\n"
                        "if #ARGV > 3 then call('HSET', KEYS[2], 'w', sub(w, 1, 2) .. sub(ARGV[#ARGV - 1], 3, 8)) end"
                    ),
                ),
            ),
        ),
    ]


def _lanes() -> list[Mutant]:
    return [
        mutant(
            "claims_ignored",
            "pipeline §3.1: a dispatch claimed at another offset passes every lane",
            {"claims", "apply_once", "entry_altered"} | ORPHANED,
            rewrite(
                "qim.core.mailbox.materialise:_judge_claim",
                ("if first_offset != record.stored.offset:", "if False:"),
            ),
        ),
        mutant(
            "w_passes_an_unwritten_row",
            "pipeline §3.2: rows and W in one script, no W without its rows",
            {"watermarks", "covered_through_gap"} | LOST | ORPHANED,
            rewrite(
                "qim.core.mailbox.appending:append", ("rows=tuple(rows)", "rows=tuple(rows[1:])")
            ),
        ),
        mutant(
            "batch_beyond_w",
            "pipeline §3.3: batches are the contiguous prefix, at most W",
            {"covered_through_gap", "covered_through_gap_total"} | LOST,
            rewrite(
                "qim.core.mailbox.pull:Pulls._answer",
                ("covered = max(before, through)", "covered = max(before, through) + 1"),
            ),
        ),
    ]


def _replays() -> list[Mutant]:
    return [
        mutant(
            "mailbox_replay_from_the_end",
            "pipeline §3.2: replay starts at min W + 1",
            LOST | {"watermarks", "mailbox_seq_regression_count", "covered_through_gap"},
            rewrite(
                "qim.core.mailbox.opening:on_ends_read",
                (
                    "if verdict is Verdict.TRUSTED:",
                    (
                        "if verdict in (Verdict.TRUSTED, Verdict.NEEDS_PREDECESSOR):\n"
                        "        shard.next_offset = event.end"
                    ),
                ),
            ),
            # The machine's own book-keeping would see it at once; what is asked here is whether the world does.
            rewrite(
                "qim.core.mailbox.shard:Shard.check",
                ('assert record.seq == minimum + 1 + index, "the window has a hole"', "pass"),
                (
                    "assert (minimum + 1 + len(self.window)) == self.seq_of(self.next_offset)",
                    "pass",
                ),
                (
                    "assert self.ready <= minimum + len(self.window) and behind <= len(self.window)",
                    "pass",
                ),
            ),
        ),
    ]


def _edges() -> list[Mutant]:
    return [
        mutant(
            "silence_fails_a_row",
            "pipeline §6: nobody's silence fails a row, it is sent again until not_after",
            {"failed_but_committed", "settled_twice"},
            rewrite(
                "qim.core.client.settling:Settling.refused",
                (
                    "elif may_help(code):",
                    "elif code != ErrorCode.TIMEOUT_UNKNOWN and may_help(code):",
                ),
            ),
        ),
    ]


def _fences() -> list[Mutant]:
    return [
        mutant(
            "fence_ignored",
            "pipeline §0: scripts keep the highest epoch of a resource, lower is Fenced",
            {"fences"},
            {
                **_unfenced("mark_committed"),
                **_unfenced("append_entries"),
                **_unfenced("commit_source"),
                **_unfenced("reserve_and_record"),
            },
        ),
        mutant(
            "coverage_unfenced",
            "pipeline §§0, 8: an auditor that slept beyond its lease drops no fact and moves no cursor",
            {"fences"},
            _unfenced("advance_coverage"),
        ),
        mutant(
            "projection_unfenced",
            "pipeline §§0, 4: the projection has a checkpoint of its own, fenced",
            {"fences"},
            {**_unfenced("project_dispatches"), **_unfenced("apply_states")},
        ),
        mutant(
            "archiver_unfenced",
            "pipeline §§0, 5: an archiver that slept beyond its lease moves no position",
            {"fences"},
            _unfenced("commit_archive"),
        ),
        mutant(
            "trim_and_reads_unfenced",
            "pipeline §0: scripts keep the highest epoch of a resource, those that trim and read too",
            {"fences"},
            {**_unfenced("trim_hot"), **_unfenced("read_history"), **_unfenced("read_membership")},
        ),
    ]


def _opens() -> list[Mutant]:
    return [
        mutant(
            "epoch_of_two_owners",
            "pipeline §0: an epoch must exceed every epoch visible, and one that stands already is another's",
            {"fences"} | TWICE | LOST,
            {
                **_shared("open_shard"),
                **_shared("open_source"),
                **_shared("open_mailbox"),
                **_shared("open_session"),
                **_shared("open_archive"),
            },
        ),
        mutant(
            "coverage_opened_by_a_zombie",
            "pipeline §§0, 8: whoever opens a coverage under a lower epoch is fenced",
            {"fences"},
            rescript(
                "open_coverage",
                ("if held and below(ARGV[1], held) then return nil, {'F', held} end", ""),
            ),
        ),
    ]


def _shared(script: str) -> dict[str, str]:
    return rescript(script, ("fence[2] ~= ARGV[3] then return nil", "false then return nil"))


def _unfenced(script: str) -> dict[str, str]:
    return rescript(
        script,
        (
            "if held and below(epoch, held) then return {'F', held} end\n  return {'R'}",
            "return nil",
        ),
    )
