"""The reach census: what must happen in a sweep, declared here, and what must never happen (simulator.md).

``sometimes``: must be seen within ``SEEDS`` swarm worlds. A name is that of the report's census: ``fault.<kind>``, the
services' own (``store.…``, ``log.…``, ``registry.…``, ``network.…``, ``socket.…``), ``stage.<STAGE>`` and ``said.<count>``
for what machines count. ``never``: seen once is a finding.
"""

from typing import Final

from qim.core.contract.invariants import Stage
from qim.sim.faults import FAULTS, tag_of

SEEDS: Final = 240
"""Swarm worlds within which everything declared must have happened."""

STAGES: Final = (
    Stage.RECORDED,
    Stage.OUTBOXED,
    Stage.COMMITTED,
    Stage.DISPATCHED,
    Stage.MAILBOXED,
    Stage.PUSHED,
    Stage.APPLIED,
)

SOMETIMES: Final = (
    *(f"fault.{tag_of(kind)}" for kind in FAULTS if kind.tolerated and kind.drawn_by == "swarm"),
    *(f"stage.{stage}" for stage in STAGES),
    # processes
    *(
        f"crashed.{role}"
        for role in ("writer", "fanout", "mailbox", "session", "archiver", "gateway", "client")
    ),
    "process.resumed",
    "process.lost",
    "process.stopped_for_ever",
    "drain.done",
    "lease_check_refused",
    "writer.usurped",
    # store
    "store.applied_late",
    "store.emptied",
    "store.flushed",
    "store.reconnected",
    "store.refused_on_memory",
    "store.reply_lost",
    "store.reset_answered",
    "store.restarted",
    "store.scripts_forgotten",
    "store.noscript",
    "store.stalled_past_timeout",
    "store.tail_lost",
    "store.unreachable",
    # logs
    "log.doubled",
    "log.landed_late",
    "log.no_leader",
    "log.not_appended",
    "log.read_failed",
    "log.reply_lost",
    "log.short_fetch",
    "log.stalled_past_timeout",
    "log.outbox_trimmed",
    # archive
    "archive.cut",
    "archive.late",
    "archive.partial",
    "archive.reply_lost",
    "archive.stale",
    "archive.unreachable",
    # registry and network
    "registry.cut",
    "registry.expired_under_owner",
    "registry.lagged",
    "registry.reply_lost",
    "network.cut",
    "network.drop",
    "network.overtake",
    "network.repeat",
    "partition.one_way",
    "partition.two_way",
    "socket.reset",
    "socket.split",
    # clients
    "client.cursor_tampered",
    "client.cursor_ancient",
    "client.cursor_future",
    "client.garbage",
    "client.twin",
    "said.client_rebuilds",
    "said.gateway_kicked.REPLACED",
    "said.gateway_kicked.IDLE",
    "said.gateway_kicked.SHUTDOWN",
    # error branches
    *(
        f"said.gateway_refused.{code}"
        for code in (
            "CURSOR_EXPIRED",
            "CURSOR_INVALID",
            "FRAME_TOO_LARGE",
            "INVALID_ARGUMENT",
            "NOT_FOUND",
            "NOT_MEMBER",
            "SEND_EXPIRED",
            "TIMEOUT_UNKNOWN",
            "UNAUTHENTICATED",
            "UNAVAILABLE",
        )
    ),
    "said.refused.NOT_OWNER",
    "said.duplicate_send.attached",
    "said.duplicate_send.replayed",
    # branches of the machines that only trouble reaches
    "said.shard_refresh.append_unknown",
    "said.shard_refresh.epoch_moved",
    "said.shard_refresh.store_reset",
    "said.outbox_restored",
    "said.intent_resumed",
    "said.mailbox_duplicate_dispatch",
    "said.version_not_yet.fanout",
    "said.version_not_yet.mailbox",
    "said.op_unknown.append",
    "said.op_unknown.barrier",
    "said.op_unknown.mark",
    "said.op_unknown.open",
    "said.op_unknown.reserve",
    "said.lease_lost.writer",
    "said.lease_lost.mailbox",
    "said.lease_lost.fanout",
    "said.lease_expired.writer",
    "said.lease_lost.archiver",
    "said.lease_lost.session",
    # sessions and tiered history
    "said.archive_expired_rows",
    "said.archived_rows",
    "said.conversations_restored",
    "said.hot_trimmed",
    "said.local_unread_judged",
    "said.mailbox_recalls_unknown",
    "said.mailbox_trimmed",
    "said.read_back_judged",
    "said.delivered_judged",
    "said.op_unknown.archive",
    "said.op_unknown.trim",
    "said.session_answer_late",
    "said.session_state_lost",
    "said.version_not_yet.session",
    "said.audit_runs.CLEAN",
    "said.audit_fenced",
    "audit.amid_faults",
    "audit.zombie",
)

NEVER: Final = (
    "said.outbox_undecodable",
    "said.fanout_dead_letter",
    "said.fanout_newer_format",
    "said.mailbox_dead_letter",
    "said.mailbox_newer_format",
    "log.recreated",
)
"""A correct build under tolerated faults never gets there."""


def unreached(census: dict[str, int]) -> list[str]:
    """Declared, but not seen."""
    return [name for name in SOMETIMES if not census.get(name)]


def forbidden(census: dict[str, int]) -> list[str]:
    """Seen (also with a label behind), though declared impossible."""
    return [
        f"{seen} ({count})"
        for seen, count in census.items()
        for name in NEVER
        if count and (seen == name or seen.startswith(name + "."))
    ]
