"""Mutants of what users are shown: history, overlays, unread, lists, read marks, states, the archive."""

from qim.sim.mutants import Mutant
from tests.sim.mutants.making import LOST, mutant
from tests.sim.mutants.rewriting import rescript, rewrite

SHOWN = {"history", "unread", "preview", "recalled", "history_gap"}
"""What a user is told of a conversation is not what the logs say."""


def views() -> list[Mutant]:
    """All of them; raises Unbound where a rule has moved."""
    return [
        *_reads(),
        *_trimming(),
        *_archiver(),
        *_restoring(),
        *_lists(),
        *_states(),
        *_devices(),
        *_mailboxes(),
    ]


def _reads() -> list[Mutant]:
    scan = "qim.core.writer.scan"
    return [
        mutant(
            "own_messages_counted",
            "pipeline §4: unread counts senders other than me",
            {"unread"},
            rewrite(
                "qim.core.writer.query:Tally.offer",
                ("row.record.sender_id != self.user_id and row.record.kind", "row.record.kind"),
            ),
        ),
        mutant(
            "left_at_off_by_one",
            "contract, Entities: visible in (joined_at, left_at]",
            SHOWN,
            rewrite(f"{scan}:ranges_of", ("min(high, left_at + 1)", "min(high, left_at)")),
        ),
        mutant(
            "expired_rows_shown",
            "pipeline §5: what retention took is visible nowhere and counted nowhere",
            SHOWN,
            rewrite(f"{scan}:Judgement.shows", ("return self.wall < until", "return True")),
        ),
        mutant(
            "recall_misses_the_archive",
            "pipeline §5: every read path applies overlays, the cold one too",
            SHOWN,
            rewrite(
                f"{scan}:Scan._take_judged",
                (
                    "self._offer(rows, page)",
                    "self._offer(rows, msgspec.structs.replace(page, recalled=(), deleted=()))",
                ),
            ),
        ),
        mutant(
            "floor_not_read_again",
            "pipeline §5: newer-paging re-reads F at the end and repeats if it moved",
            SHOWN,
            rewrite(
                f"{scan}:Scan._end_cold",
                (
                    "self._ranges[0] = (top - 1, high)",
                    "self._ranges[0] = (top - 1, high)\n        self._tiered = False",
                ),
            ),
        ),
    ]


def _trimming() -> list[Mutant]:
    return [
        mutant(
            "trim_before_the_archive_watermark",
            "pipeline §5: a hot row goes iff it is old and below the archive watermark",
            SHOWN | {"trimmed_unarchived", "preview"} | LOST,
            rescript("trim_hot", ("'(' .. sub(position, 1, 8)", "'+'")),
        ),
        mutant(
            "floor_stays_behind",
            "pipeline §5: the hot floor rises in the script that drops the rows",
            SHOWN | LOST,
            rescript(
                "trim_hot",
                (
                    "for i = 1, #order do call('HSET', 'c:' .. order[i], 'f', floors[order[i]]) end",
                    "",
                ),
            ),
        ),
    ]


def _archiver() -> list[Mutant]:
    machine = "qim.core.archiver.machine:HistoryArchiver"
    return [
        mutant(
            "position_saved_before_confirm",
            "pipeline §5: all confirmed, then the position",
            {"archive_watermark", "archived", "trimmed_unarchived"} | SHOWN,
            rewrite(
                f"{machine}._pump",
                (
                    "batching.write(self._orders, partition)",
                    (
                        "batching.write(self._orders, partition)\n"
                        "        partition.confirmed = partition.batch[-1]"
                    ),
                ),
            ),
            # The machine's own book-keeping would see it at once; what is asked here is whether the world does.
            rewrite(
                "qim.core.archiver.partition:Partition.check",
                (
                    'assert self.confirmed.stored.offset + 1 == expected, "confirmed and unconfirmed overlap"',
                    "pass",
                ),
                (
                    "assert self.commit.to.offset <= self.next_offset - self.window_records()",
                    "pass",
                ),
            ),
        ),
        mutant(
            "write_in_doubt_taken_for_done",
            "pipeline §5: Unknown of a batch is written again, never counted as confirmed",
            {"archive_watermark", "archived"} | SHOWN,
            rewrite(
                f"{machine}._on_partition_answer",
                (
                    "case Failed() | Unknown():\n            self._put_off(now, partition, what)",
                    (
                        "case Failed() | Unknown():\n"
                        "            if what is What.WRITE and type(event) is Unknown:\n"
                        "                batching.written(self._orders, partition)\n"
                        "                return\n"
                        "            self._put_off(now, partition, what)"
                    ),
                ),
            ),
        ),
    ]


def _restoring() -> list[Mutant]:
    return [
        mutant(
            "restore_forgets_versions",
            "pipeline §1.8: every membership version comes back",
            {"version_unknown", "machine_died", "mailbox", "session_at_end"} | SHOWN | LOST,
            rescript(
                "restore_conversations",
                (
                    "call('HSETNX', KEYS[key + 2], name,",
                    "if false then call('HSETNX', KEYS[key + 2], name,",
                ),
                (
                    "sub(versions, at + 24, at + 31) .. bitmap)",
                    "sub(versions, at + 24, at + 31) .. bitmap) end",
                ),
            ),
        ),
        mutant(
            "restore_forgets_the_greatest_seq",
            "pipeline §1.8: the greatest seq of every conversation comes back",
            {"seq_unique", "commit_once", "archived", "machine_died", "append_order"}
            | SHOWN
            | LOST,
            rescript(
                "restore_conversations",
                ("call('HSET', ckey, 's', seq .. activity, 'f',", "call('HSET', ckey, 'f',"),
            ),
        ),
    ]


def _lists() -> list[Mutant]:
    return [
        mutant(
            "summary_reused_when_dirty",
            "pipeline §4: dirty conversations are recomputed",
            {"unread", "preview"},
            rewrite(
                "qim.core.session.snapshots:Snapshots.kept",
                ("kept.inputs != inputs_of(record) or ", ""),
            ),
        ),
        mutant(
            "summary_outlives_retention",
            "pipeline §4: a summary holds as long as retention leaves it alone",
            {"unread", "preview"},
            rewrite(
                "qim.core.session.snapshots:Snapshots.kept",
                (" or kept.summary.valid_until <= wall", ""),
            ),
        ),
        mutant(
            "overlay_raises_the_conversation",
            "pipeline §4: the list is ordered by activity, which a recall is not",
            {"session_order"},
            rewrite(
                "qim.core.session.projecting:merge",
                (
                    "activity = EMPTY_ID if overlay else",
                    "activity = dispatch.last_activity_id if overlay else",
                ),
            ),
        ),
        mutant(
            "projected_through_the_end",
            "pipeline §4: projected_through is what is projected",
            {"projected_through"},
            rewrite(
                "qim.core.session.listing:Listing._freeze",
                (
                    "before_first(shard.shard_epoch, projected)",
                    "before_first(shard.shard_epoch, max(projected, shard.dispatch.end_offset) + 1)",
                ),
            ),
        ),
    ]


def _states() -> list[Mutant]:
    return [
        mutant(
            "read_mark_set",
            "pipeline §4: read = max on every path",
            {"read_mark", "mark_forward", "unread"},
            rescript(
                "apply_states",
                (
                    "if mark ~= '' then return below(mark, sub(held, 1, 8)) end",
                    "if mark ~= '' then return false end",
                ),
                ("read = greater(mark, read)", "read = mark"),
            ),
        ),
        mutant(
            "state_by_arrival",
            "pipeline §4: state is ordered by (version, device)",
            {"user_state", "mark_forward"},
            rescript(
                "apply_states",
                ("return below(sub(state, 1, ORDER), sub(held, 1, ORDER))", "return false"),
            ),
        ),
    ]


def _devices() -> list[Mutant]:
    return [
        mutant(
            "device_counts_the_recalled",
            "pipeline §6: the same unread definition computed locally",
            {"local_unread"},
            rewrite(
                "qim.core.client.conversation:unread_of",
                ("row.hidden, user_id)", "0, user_id)"),
            ),
        ),
        mutant(
            "delivered_by_what_is_there",
            "pipeline §4: delivered is what a device showed to hold, not what it is about to be given",
            {"delivered_leads"},
            rewrite(
                "qim.core.mailbox.pull:Pulls.on_ask",
                (
                    "self._delivered.note(now, shard, cursor)",
                    (
                        "self._delivered.note(now, shard, msgspec.structs.replace("
                        "cursor, seq=shard.watermark(cursor.lane)))"
                    ),
                ),
            ),
        ),
    ]


def _mailboxes() -> list[Mutant]:
    return [
        mutant(
            "overlay_ignored_in_pulls",
            "pipeline §5: mailbox pulls apply recalls too",
            {"recalled_body", "device_recalled"},
            rewrite(
                "qim.core.mailbox.joining:Joining.on_overlays",
                ("if recall\n", "if False\n"),
            ),
        ),
        mutant(
            "overlays_believed_before_open",
            "pipeline §0: nothing learnt in one incarnation counts in another, and recalls may be in the lost tail",
            {"recalled_body"},
            rewrite(
                "qim.adapters.redis.codec_history:decode_overlays",
                ("mark in names for", "True for"),
            ),
        ),
        mutant(
            "pushes_ask_for_no_recall",
            "pipeline §5: a body that was recalled leaves by no push either",
            {"recalled_body", "device_recalled"},
            rewrite("qim.core.mailbox.push:Pushes.on_overlays", ("if mark != 0:", "if False:")),
        ),
    ]
