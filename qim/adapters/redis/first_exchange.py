"""What every new connection asks before a call is let through, and what the answers must say.

A server's history is named by its ``run_id`` AND its replication id. A failover and back (a master made a replica of its
former replica, then a master again) leaves the run_id, and the copied ``qim:incarnation`` too, but puts older data beneath:
only the replication id, made anew at each promotion, each full copy and the first replica's coming, tells (pipeline.md §0).
A replica is never written to, and what it shows may be behind: it is refused until it is a master.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from qim.adapters.redis.blocking import parse_info
from qim.adapters.redis.layout import INCARNATION_KEY
from qim.adapters.redis.outcomes import CallFailed, ServerError

SETTING_NAMES: Final = ("appendonly", "appendfsync", "maxmemory-policy")
INFO_REPLICATION: Final = (b"INFO", b"replication")
QUESTIONS: Final[tuple[tuple[bytes | str, ...], ...]] = (
    (b"INFO", b"server"),
    (b"INFO", b"persistence"),
    INFO_REPLICATION,
    *((b"CONFIG", b"GET", name) for name in SETTING_NAMES),
    (b"GET", INCARNATION_KEY),
)
_NO_LEAVE: Final = ("ERR", "NOPERM")
_ROLE_GONE: Final = ("READONLY", "MASTERDOWN")


class HandshakeRefused(Exception):
    """The server answered the first exchange with an error (it is still loading, wants a password, …), or must not serve us."""


class ServerSaid(HandshakeRefused):
    """Its own error reply; ``code`` as in ServerError."""

    def __init__(self, error: ServerError) -> None:
        super().__init__(str(error))
        self.code = error.code


class NotAMaster(HandshakeRefused):
    """It is a replica, or may be one; the text says of whom."""


class FilePutOff(HandshakeRefused):
    """The append-only file can't be begun anew while a snapshot is made, for a replica's coming too: it ends by itself."""


class ServerFacts(Struct, frozen=True, kw_only=True):
    """What start-up judges; ``settings`` as CONFIG GET answers them, none of them where it said ``unreadable``."""

    info: bytes
    settings: Mapping[str, str]
    unreadable: str = ""


class Greeting(Struct, frozen=True, kw_only=True):
    """The answers, read."""

    run: bytes
    facts: ServerFacts
    persistence: Mapping[str, str]
    incarnation_key: bytes


def greeting(answers: Sequence[Any]) -> Greeting:
    """Those to QUESTIONS, in order (pure). Raises HandshakeRefused."""
    server, persistence, replication, *settings, marker = answers
    for answer in (server, persistence, replication, marker):
        accepted(answer)
    run_id = parse_info(server).get("run_id")
    if not run_id:
        raise HandshakeRefused("INFO names no run_id")
    return Greeting(
        run=run_of(run_id, replication),
        facts=_facts(server, settings),
        persistence=parse_info(persistence),
        incarnation_key=marker or b"",
    )


def run_of(run_id: str, replication: bytes) -> bytes:
    """The name of the history that this server writes on (pure). Raises HandshakeRefused for a replica, or one that may be."""
    fields = parse_info(replication)
    role = fields.get("role")
    if role is None:
        raise HandshakeRefused("INFO names no role")
    if role != "master":
        raise NotAMaster(f"a replica ({role} of {fields.get('master_host', 'unknown')})")
    return ".".join(filter(None, (run_id, fields.get("master_replid")))).encode()


def accepted(answer: Any) -> Any:
    """It, unless it is an error. Raises HandshakeRefused."""
    if isinstance(answer, ServerError):
        raise ServerSaid(answer)
    if isinstance(answer, CallFailed):
        raise HandshakeRefused(str(answer))
    return answer


def told_of_its_role(answer: Any) -> bool:
    """Whether this reply says that the server is no master now, whatever it will be when it is asked again."""
    return isinstance(answer, ServerError) and answer.code in _ROLE_GONE


def _facts(server: bytes, answers: Sequence[Any]) -> ServerFacts:
    found: dict[str, str] = {}
    for answer in answers:
        if isinstance(answer, ServerError) and answer.code in _NO_LEAVE:
            return ServerFacts(info=server, settings={}, unreadable=str(answer))
        if accepted(answer):
            found[answer[0].decode()] = answer[1].decode()
    return ServerFacts(info=server, settings=found)
