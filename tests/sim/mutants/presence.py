"""Mutants of who counts as online, whom a new connection replaces, and how long an entry is kept (pipeline §3.6)."""

from qim.sim.mutants import Mutant
from tests.sim.mutants.making import LOST, mutant
from tests.sim.mutants.rewriting import rescript, rewrite

ENTRY = {"presence_entry"}
"""The store does with an entry what its rule forbids."""


def presence() -> list[Mutant]:
    """All of them; raises Unbound where a rule has moved."""
    return [*_scripts(), *_gateways()]


def _scripts() -> list[Mutant]:
    return [
        mutant(
            "presence_by_epoch_alone",
            "pipeline §3.6: an entry that a lost tail brought back replaces nobody",
            LOST | ENTRY | {"replaced_by_nobody", "online_unlisted"},
            rescript(
                "refresh_presence",
                ("below(age(entry), age(held))", "below(sub(entry, 1, 8), sub(held, 1, 8))"),
            ),
        ),
        mutant(
            "epoch_by_wall_alone",
            "pipeline §3.6: session_epoch = max(stored + 1, wall ms << 16)",
            ENTRY,
            rescript("enter_presence", ("epoch = greater(epoch, successor(sub(held, 1, 8)))", "")),
        ),
        mutant(
            "earlier_attempt_enters",
            "pipeline §3.6: a lower attempt than a live entry's is refused",
            ENTRY | {"replaced_by_nobody"},
            rescript("enter_presence", (" and below(ARGV[3], sub(held, 9, 16))", " and false")),
        ),
        mutant(
            "replaced_is_not_told",
            "pipeline §3.6: the script returns the entry it replaced",
            ENTRY,
            rescript("enter_presence", ("return {'K', epoch, held}", "return {'K', epoch, ''}")),
        ),
        mutant(
            "stale_close_takes_the_newer",
            "pipeline §3.6: a stale close never touches a newer entry",
            ENTRY | {"online_unlisted"},
            rescript("leave_presence", (" and sub(held, 1, 8) == ARGV[3]", "")),
        ),
    ]


def _gateways() -> list[Mutant]:
    return [
        mutant(
            "entries_never_refreshed",
            "pipeline §3.6: the holder refreshes its entry, and writes it again after a StoreReset",
            {"online_unlisted"},
            rewrite(
                "qim.core.gateway.presence:Presence._refresh_batch",
                ("connection is not None and connection.is_live()", "False"),
            ),
        ),
        mutant(
            "gone_connection_refreshed",
            "pipeline §3.6: the holder alone keeps an entry; one of nobody ends by its TTL",
            {"refreshed_for_nobody", "online_unlisted"},
            rewrite(
                "qim.core.gateway.machine:ConnectionNode._on_socket",
                ("if connection is not None:", "if False:"),
            ),
        ),
        mutant(
            "kick_by_the_new_epoch",
            "pipeline §3.6: the replaced one is kicked at its address, by its epoch",
            {"kick_of_nobody"},
            rewrite(
                "qim.core.gateway.auth:Authentication.entered",
                ("session_epoch=replaced.session_epoch", "session_epoch=reply.session_epoch"),
            ),
        ),
        mutant(
            "expired_entries_are_online",
            "pipeline §3.6: whose TTL is over is online nowhere",
            ENTRY,
            rewrite(
                "qim.adapters.redis.codec_presence:decode_presence",
                ("if entry.expires_at > request.now_wall", "if entry.expires_at"),
            ),
        ),
    ]
