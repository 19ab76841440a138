"""The table of metrics.py: machines first in the order of the chain, then what every process has, then the adapters.

A row is: name, unit, label, meaning, and the page of docs/alarms/ that says what to do, where there is one.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from qim.core.contract.invariants import INVARIANT_MEANINGS
from qim.services.metrics import Kind, MetricMeaning

UNKNOWN_LABEL: Final = ("label",)
Row = tuple[str, str, str, str] | tuple[str, str, str, str, str]

_COUNTERS: Final[tuple[Row, ...]] = (
    # gateway
    ("gateway_refused", "answers", "code", "requests a gateway answered with ERROR, by its code"),
    ("gateway_kicked", "connections", "reason", "connections ended with KICKED", "slow-consumers"),
    ("gateway_connections_refused", "connections", "", "more than connections_max, or while draining", "queue-full"),
    ("gateway_request_timeouts", "requests", "kind", "questions to a service without an answer in time", "timeouts"),
    ("gateway_answers_ignored", "answers", "", "late, doubled or misfit answers; harmless"),
    ("gateway_messages_ignored", "messages", "kind", "messages no gateway is asked; harmless"),
    ("gateway_pushes_dropped", "pushes", "why", "hints whose device was gone or not ONLINE: the watermark repairs them"),
    ("gateway_presence_refresh_failed", "refreshes", "", "presence entries not refreshed: pushes stop at their TTL", "store-unreachable"),
    ("gateway_badges_unknown", "logins", "", "AUTH_OK without the unread badge: no session shard answered in time"),
    # writer
    ("messages", "messages", "", "committed and acknowledged"),
    ("duplicate_send", "requests", "how", "the same client_message_id again: answered with the first commit"),
    ("refused", "requests", "code", "requests a writer refused, by the code of the answer"),
    ("refreeze", "messages", "", "audience frozen again, as the membership had moved"),
    ("record_refused", "messages", "", "records the log refused to take (too large, invalid)", "record-refused"),
    ("moderation_verdicts", "messages", "verdict", "answers of the before-send hook; unavailable: down, slow or no verdict", "moderation"),
    ("moderation_failed_open", "messages", "", "let pass though nobody could judge them (QIM_WEBHOOK_FAIL_POLICY=open)", "moderation"),
    ("shard_open", "opens", "", "writer shards opened: each lease, each store reset", "shards-not-serving"),
    ("shard_serving", "opens", "", "writer shards that came to serve"),
    ("shard_refresh", "opens", "why", "serving shards that had to open again", "shards-not-serving"),
    ("op_failed", "requests", "why", "requests of the writer that surely did nothing, and were repeated", "store-unreachable"),
    ("op_unknown", "requests", "call", "requests of the writer whose outcome is not known, settled by repeating", "store-unreachable"),
    ("outbox_restored", "records", "", "records put back into the store from the outbox by an open"),
    ("outbox_ineffective", "records", "", "late appends of owners that were gone: fenced by a barrier"),
    ("outbox_undecodable", "records", "", "bytes of the outbox no version can read", "dead-letters"),
    ("intent_resumed", "messages", "", "recorded and not appended when the shard was opened: finished then"),
    ("conversations_restored", "conversations", "", "put back from the archive by an open"),
    ("hot_rows_trimmed", "rows", "", "history the archive took over from the hot store"),
    ("heads_dropped", "conversations", "", "heads not written: the next message writes them"),
    ("clock_refused", "times", "", "the clock was too far ahead of the log's to serve", "clock"),
    ("unexpected_message", "messages", "", "messages no writer is asked; harmless"),
    # fanout, mailbox, session, archiver
    ("version_not_yet", "reads", "machine", "membership versions the store did not have yet", "version-awaited"),
    ("fanout_newer_format", "records", "partition", "a record of a later version: the partition waits for newer code", "newer-format"),
    ("fanout_dead_letter", "records", "partition", "bytes no version can read: kept, and passed", "dead-letters"),
    ("mailbox_newer_format", "records", "shard", "a dispatch of a later version: the shard waits for newer code", "newer-format"),
    ("mailbox_dead_letter", "records", "shard", "dispatches no version can read: passed", "dead-letters"),
    ("mailbox_duplicate_dispatch", "dispatches", "", "seen before at another offset: passed, which is what claims are for"),
    ("mailbox_body_missing", "bodies", "", "neither in the dispatch nor hot nor archived: the pull stops before it", "body-missing"),
    ("mailbox_recalls_unknown", "pulls", "", "pulls cut short, as recalls could not be read: asked again", "store-unreachable"),
    ("mailbox_pull_refused", "pulls", "", "more than pulls_inflight_max: answered UNAVAILABLE", "queue-full"),
    ("mailbox_push_hints", "messages", "", "messages whose hint was handed to a gateway"),
    ("mailbox_push_dropped", "users", "", "hints dropped for room or for want of presence: the watermark repairs them"),
    ("push_task", "users", "", "recipients without a device online"),
    ("mailbox_finish_dropped", "marks", "", "progress marks dropped for room: a missing mark means nothing"),
    ("mailbox_delivered_dropped", "notes", "", "delivered watermarks not noted for room: the next pull notes them"),
    ("mailbox_message_ignored", "messages", "", "messages no mailbox is asked; harmless"),
    ("session_newer_format", "records", "topic", "a record of a later version: the feed waits for newer code", "newer-format"),
    ("session_dead_letter", "records", "topic", "bytes no version can read: passed", "dead-letters"),
    ("session_state_lost", "values", "", "read marks and states that lost against a newer one, whose winner was appended again"),
    ("session_row_unknown", "rows", "", "conversations of a list whose writer knows no such member: should stay 0"),
    ("session_answer_late", "answers", "", "answers of writers after their time; harmless"),
    ("session_message_ignored", "messages", "", "messages no session projection is asked; harmless"),
    ("archived_rows", "rows", "", "confirmed by the archive; one that was written again counts again"),
    ("archive_expired_rows", "rows", "", "removed by retention"),
    ("archiver_newer_format", "records", "partition", "a record of a later version: the partition waits for newer code", "newer-format"),
    ("archiver_undecodable", "records", "partition", "bytes no version can read: skipped; fanout keeps them", "dead-letters"),
    ("audit_runs", "runs", "verdict", "orphan audits finished", "orphans"),
    ("audit_fenced", "runs", "", "audits whose lease ended meanwhile: they looked on, and moved no coverage any more", "leases"),
    # leases
    ("lease_lost", "leases", "role", "another holds it, or it ran out at the registry", "leases"),
    ("lease_expired", "leases", "role", "not renewed in time: its owner stopped by itself", "leases"),
    ("lease_registry_set_back", "leases", "role", "the registry granted an epoch below one it had granted: restored from a backup", "registry"),
    ("lease_grant_too_late", "leases", "role", "granted, but its answer came after its validity", "leases"),
    # every process
    ("stage", "messages", "stage", "messages that reached a stage of their way in this process"),
    ("violation", "violations", "check", "named stops that are not one of the five invariants; never 0 again before a restart", "violations"),
    ("log_records_expired", "records", "topic", "removed from the embedded log by retention"),
    ("log_retention_failed", "times", "topic", "the embedded log could not be trimmed", "disk"),
    ("tls_handshakes_failed", "handshakes", "code", "client handshakes that failed, by reason", "certificates"),
    ("tls_reloads", "reloads", "pair", "certificates read again on SIGHUP; refused: the old pair stays", "certificates"),
    ("rpc_messages_dropped", "messages", "why", "messages between processes that found no room or no peer", "rpc"),
    ("rpc_refused", "connections", "code", "internal connections refused, by reason", "rpc"),
    ("admin_orders", "orders", "outcome", "operators' orders by Admin mTLS: done, refused or failed", "rpc"),
    ("rpc_dials_failed", "dials", "code", "internal connections that could not be made, by reason", "rpc"),
    ("rpc_reconnects", "connections", "role", "internal connections made again", "rpc"),
)  # fmt: skip

_TOTALS: Final[tuple[Row, ...]] = (
    # counted by adapters since the start, read when they are scraped: from the first scrape on
    ("log_commits", "commits", "", "commits of the embedded log"),
    ("log_busy_seconds", "seconds", "", "time the embedded log's threads have worked"),
    ("webhook_asks_refused", "messages", "", "not asked about for want of room: unavailable", "moderation"),
    ("webhook_notices_sent", "messages", "", "after-send notices that were taken"),
    ("webhook_notices_failed", "messages", "", "after-send notices sent in vain; not sent again", "moderation"),
    ("webhook_notices_dropped", "messages", "", "after-send notices never sent: no room, or the process ended", "moderation"),
    ("operator_requests_refused", "requests", "", "requests that found every thread busy: answered 503 at once", "queue-full"),
    ("log_lines_dropped", "lines", "", "log lines nobody will read: their reader lags"),
    ("store_connections", "connections", "store", "connections made: more than 1 is a reconnect", "store-unreachable"),
    ("store_scripts_reloaded", "scripts", "store", "scripts the server had forgotten"),
    ("store_answers_unknown", "calls", "store", "calls whose outcome is not known", "store-unreachable"),
    ("store_answers_overloaded", "calls", "store", "calls not sent for want of room", "queue-full"),
    ("store_replies_malformed", "replies", "store", "replies no script gives: a foreign program under our keys", "store-unreachable"),
    ("store_resets_noticed", "resets", "store", "other incarnations seen at the connection", "store-reset"),
    ("registry_reconnects", "connections", "", "connections to the registry made again", "registry"),
    ("registry_answers", "requests", "kind", "registry requests by kind and outcome", "registry"),
    ("registry_busy_seconds", "seconds", "kind", "time spent in registry requests, by kind", "registry"),
    ("kafka_append_retries", "appends", "", "appends sent again under the same sequence", "log-unreachable"),
    ("kafka_append_unknowns", "appends", "", "appends whose outcome is not known", "log-unreachable"),
    ("kafka_producer_ids", "producers", "", "producer identities taken: one more after each append of unknown outcome", "log-unreachable"),
    ("kafka_polls", "polls", "", "looks at the broker: standing still is a stall", "log-unreachable"),
    ("kafka_consumer_recreated", "consumers", "", "stalled consumers thrown away by the watchdog", "log-unreachable"),
    ("kafka_positions_refused", "fetches", "", "fetches outside the log, or behind another record than was read: nothing is reset", "position-mismatch"),
    ("kafka_batches_broken", "batches", "", "batches whose checksum or form is wrong", "log-unreachable"),
    ("kafka_topics_recreated", "topics", "", "topics that came back under another id", "position-mismatch"),
    ("kafka_metadata_failed", "requests", "", "looks at the cluster that failed", "log-unreachable"),
    ("archive_requests_refused", "requests", "", "not tried for want of room", "archive"),
    ("archive_requests_failed", "requests", "", "surely not carried out: out of reach, overloaded or refused; asked again", "archive"),
    ("archive_writes_unknown", "writes", "", "writes of unknown outcome, repeated", "archive"),
    ("rpc_messages_received", "messages", "", "messages of other processes"),
    ("rpc_messages_sent", "messages", "", "messages to other processes"),
    ("rpc_bytes_received", "bytes", "", "bytes of other processes"),
    ("rpc_bytes_sent", "bytes", "", "bytes to other processes"),
    ("rpc_messages_misdirected", "messages", "", "messages for a role this process doesn't host", "rpc"),
)  # fmt: skip

_GAUGES: Final[tuple[Row, ...]] = (
    ("queue_depth", "items", "queue", "what is in a bounded structure of a machine", "queue-full"),
    ("queue_capacity", "items", "queue", "how much may be in it (sums over the shards held here)", "queue-full"),
    ("inbox_events_waiting", "events", "machine", "facts a machine has not been handed yet", "event-loop"),
    ("shards_serving", "shards", "role", "shards or partitions open here", "shards-not-serving"),
    ("leases_wished", "leases", "role", "leases this process should hold, by rendezvous over who lives", "leases"),
    ("leases_held", "leases", "role", "leases it holds", "leases"),
    ("lease_valid_seconds", "seconds", "role", "until the first of them would end if it were not renewed", "leases"),
    ("fanout_lag_records", "records", "partition", "outbox records behind the checkpoint", "lag"),
    ("fanout_halted", "records", "partition", "1: a record of a later version halts it, and nothing behind is delivered", "newer-format"),
    ("mailbox_lag_records", "records", "shard", "dispatches above min W", "lag"),
    ("mailbox_watermark_age_seconds", "seconds", "shard", "since the log took the oldest dispatch that min W has not passed", "lag"),
    ("mailbox_halted", "records", "shard", "1: a dispatch of a later version halts it", "newer-format"),
    ("session_lag_records", "records", "shard", "dispatches that are not projected: lists are as old as this", "lag"),
    ("session_state_lag_records", "records", "shard", "read marks and states in the log that are not applied", "lag"),
    ("session_halted", "records", "shard", "feeds (dispatches, user state) halted by a record of a later version", "newer-format"),
    ("archiver_lag_records", "records", "partition", "outbox records above the archive watermark", "lag"),
    ("archiver_halted", "records", "partition", "1: a record of a later version halts it", "newer-format"),
    ("fanout_outlet_records", "dispatches", "", "on their way into the dispatch log"),
    ("fanout_versions_wanted", "versions", "", "membership versions awaited", "version-awaited"),
    ("mailbox_versions_wanted", "versions", "", "membership versions awaited", "version-awaited"),
    ("session_versions_wanted", "versions", "", "membership versions awaited", "version-awaited"),
    ("session_snapshot_users", "users", "", "users with a list in memory"),
    ("gateway_held_frames", "batches", "", "answers that wait for room at their connection"),
    ("writer_ops", "requests", "", "requests of the writer in flight or waiting to be repeated"),
    ("clock_ahead_seconds", "seconds", "", "how far a refused clock is ahead of the log's; 0: not refused", "clock"),
    ("audit_orphans", "orphans", "", "orphans of the last audit of this process", "orphans"),
    ("tcp_streams_open", "connections", "", "client connections, authenticated or not"),
    ("tcp_read_gap_max_seconds", "seconds", "", "longest time client sockets went unread, since the last scrape", "event-loop"),
    ("tls_handshakes_open", "handshakes", "", "client handshakes under way"),
    ("tls_handshakes_open_max", "handshakes", "", "the bound of it"),
    ("log_jobs_waiting", "requests", "", "requests that wait for a thread of the embedded log", "disk"),
    ("log_jobs_waiting_max", "requests", "", "the bound of it"),
    ("registry_jobs_waiting", "requests", "", "requests that wait for the embedded registry's thread", "disk"),
    ("registry_jobs_waiting_max", "requests", "", "the bound of it"),
    ("archive_jobs_waiting", "requests", "", "requests that wait for the embedded archive's threads", "disk"),
    ("archive_jobs_waiting_max", "requests", "", "the bound of it"),
    ("webhook_asks_inflight", "messages", "", "messages the before-send hook is being asked about", "moderation"),
    ("webhook_asks_inflight_max", "messages", "", "the bound of it"),
    ("webhook_notices_waiting", "messages", "", "after-send notices not sent yet", "moderation"),
    ("webhook_notices_waiting_max", "messages", "", "the bound of it"),
    ("operator_requests_inflight", "requests", "", "requests of probes, scrapes and operators being served", "queue-full"),
    ("operator_requests_inflight_max", "requests", "", "the bound of it"),
    ("samples_stale", "yes or no", "", "1: the event loop did not come to answer or a gauge could not be read, gauges are those of the last scrape", "event-loop"),
    ("process_start_seconds", "seconds", "", "wall time of the start, seconds since 1970"),
    ("store_connected", "yes or no", "store", "the connection to the hot store stands", "store-unreachable"),
    ("store_calls_inflight", "calls", "store", "calls sent and not answered", "queue-full"),
    ("store_calls_inflight_max", "calls", "store", "the bound of it"),
    ("store_bytes_buffered", "bytes", "store", "bytes not yet taken by the kernel", "queue-full"),
    ("store_bytes_buffered_max", "bytes", "store", "the bound of it"),
    ("registry_requests_inflight", "requests", "", "registry requests sent and not answered", "registry"),
    ("registry_requests_inflight_max", "requests", "", "the bound of it"),
    ("registry_watch_up", "yes or no", "", "whether the watch on the registry stands", "registry"),
    ("registry_slowest_seconds", "seconds", "kind", "the slowest since the last scrape", "registry"),
    ("registry_leases_held", "leases", "role", "leases this process holds, by the registry's word", "leases"),
    ("kafka_lag", "records", "partition", "records of a log partition behind what was read, by the reader's own count", "lag"),
    ("kafka_appends_waiting", "appends", "", "appends that wait for the producer", "queue-full"),
    ("kafka_appends_waiting_max", "appends", "", "the bound of it"),
    ("kafka_append_bytes_waiting", "bytes", "", "bytes that wait for the producer", "queue-full"),
    ("kafka_append_bytes_waiting_max", "bytes", "", "the bound of it"),
    ("kafka_appends_in_flight", "appends", "", "appends sent and not answered"),
    ("kafka_fetches_waiting", "fetches", "", "fetches that wait for records"),
    ("kafka_fetches_waiting_max", "fetches", "", "the bound of it"),
    ("kafka_bytes_read_ahead", "bytes", "", "bytes read and not yet asked for"),
    ("archive_requests_waiting", "requests", "", "requests at the archive", "queue-full"),
    ("archive_requests_waiting_max", "requests", "", "the bound of it"),
    ("archive_statements_inflight", "statements", "kind", "statements at the archive's cluster", "archive"),
    ("archive_statements_inflight_max", "statements", "kind", "the bound of it"),
    ("archive_statements_queued", "statements", "kind", "statements that wait for one of those places", "archive"),
    ("rpc_peers", "peers", "", "processes this one speaks to", "rpc"),
    ("rpc_peers_max", "peers", "", "the bound of it"),
    ("rpc_peers_open", "peers", "", "of these, connected", "rpc"),
    ("rpc_accepted", "connections", "", "internal connections accepted", "rpc"),
    ("rpc_accepted_max", "connections", "", "the bound of it"),
    ("rpc_strangers", "connections", "", "accepted and not yet introduced", "rpc"),
    ("rpc_strangers_max", "connections", "", "the bound of it"),
    ("rpc_queue_messages", "messages", "peer", "messages that wait for a peer", "rpc"),
    ("rpc_queue_messages_max", "messages", "", "the bound of it, each peer"),
    ("rpc_queue_bytes", "bytes", "peer", "bytes that wait for a peer", "rpc"),
    ("rpc_queue_bytes_max", "bytes", "", "the bound of it, each peer"),
    ("rpc_read_gap_max_seconds", "seconds", "", "longest time internal sockets went unread, since the last scrape", "event-loop"),
    ("tls_certificate_expires_seconds", "seconds", "certificate", "until a certificate in use expires; negative: it has", "certificates"),
)  # fmt: skip

_HISTOGRAMS: Final[tuple[Row, ...]] = (
    ("stage_seconds", "seconds", "stage", "from the record's sent_at to the stage, by the clock of the process that reached it", "latency"),
    ("gateway_request_seconds", "seconds", "kind", "a gateway's question to a service until its answer; WATERMARK is PING to PONG and touches no store: the control group", "latency"),
    ("log_transit_seconds", "seconds", "topic", "from the log's append time of the first record of a fetch to its being read here", "latency"),
    ("port_seconds", "seconds", "request", "a request of a machine to store, log, registry or archive until its answer", "latency"),
    ("step_seconds", "seconds", "machine", "one step of a machine with its effects handed out", "event-loop"),
    ("inbox_wait_seconds", "seconds", "machine", "from the first fact in an empty inbox to the step: the event loop's own lag", "event-loop"),
    ("read_gap_seconds", "seconds", "sockets", "how long sockets went unread while the event loop was busy: what waits then hides in kernel buffers", "event-loop"),
    ("conn_write_wait_seconds", "seconds", "", "client connections: from the write until the kernel took all of it", "latency"),
    ("conn_write_seconds", "seconds", "", "client connections: the call that writes", "latency"),
    ("rpc_queue_wait_seconds", "seconds", "role", "messages between processes: the wait for their connection", "rpc"),
    ("rpc_write_seconds", "seconds", "role", "messages between processes: until the kernel took them", "rpc"),
    ("rpc_ping_seconds", "seconds", "role", "a ping between processes and back: no machine takes part", "rpc"),
)  # fmt: skip


def _rows(kind: Kind, rows: Iterable[Row]) -> Iterator[MetricMeaning]:
    for name, unit, label, meaning, *alarm in rows:
        yield MetricMeaning(
            name=name,
            kind=kind,
            unit=unit,
            label=label,
            meaning=meaning,
            alarm=alarm[0] if alarm else "",
        )


def _invariants() -> Iterator[MetricMeaning]:
    for invariant, told in INVARIANT_MEANINGS.items():
        yield MetricMeaning(
            name=invariant.value.removesuffix("_total").removesuffix("_count"),
            kind=Kind.COUNTER,
            unit="violations",
            label="",
            meaning=f"{told.meaning}; always 0 (seen by: {told.evidence})",
            alarm="invariants",
        )


METRICS: Final[dict[str, MetricMeaning]] = {
    one.name: one
    for one in (
        *_invariants(),
        *_rows(Kind.COUNTER, _COUNTERS),
        *_rows(Kind.COUNTER, _TOTALS),
        *_rows(Kind.GAUGE, _GAUGES),
        *_rows(Kind.HISTOGRAM, _HISTOGRAMS),
    )
}
"""By name, in the order of docs/metrics.md."""


def meaning_of(name: str) -> str:
    """The help text of a metric, by its name without prefix and ``_total``."""
    found = METRICS.get(name)
    return found.meaning if found is not None else name


def label_of(name: str) -> tuple[str, ...]:
    """The names of its labels: one or none. What the table doesn't know is served all the same, under ``label``."""
    found = METRICS.get(name)
    if found is None:
        return UNKNOWN_LABEL
    return (found.label,) if found.label else ()
