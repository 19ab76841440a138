"""The topics as the start-up checks want them (checks.py): one place for the names and values of their configuration."""

import asyncio
from asyncio import AbstractEventLoop
from typing import Final

from aiokafka.protocol.admin import CreateTopicsRequest
from msgspec import Struct, structs

from qim.adapters.kafka.cluster import BrokerGone, Cluster
from qim.adapters.kafka.settings import BODY_MARGIN_BYTES, MIB, KafkaSettings
from qim.core.ports.log import Topic

COPIES: Final = 3
IN_SYNC_MIN: Final = 2
CREATE_MS: Final = 15_000
TOPIC_EXISTS: Final = 36
MESSAGE_BYTES_MAX: Final = 4 * MIB
"""A whole batch of records: appends go out in one, so more than a record's own limit is worth having."""
FOR_EVER: Final = -1


class Created(Struct, frozen=True, kw_only=True):
    """What became of one topic: ``error`` is empty where it is there now, ``made`` where it wasn't before."""

    name: str
    made: bool
    error: str


def recovery_ms(settings: KafkaSettings, topic: Topic) -> int:
    """How long the topic must keep what it has; FOR_EVER for the compacted one."""
    match topic:
        case Topic.OUTBOX:
            return settings.outbox_recovery_ms
        case Topic.DISPATCH:
            return settings.dispatch_recovery_ms
        case Topic.USER_STATE:
            return FOR_EVER


def message_bytes_min(settings: KafkaSettings) -> int:
    """The smallest max.message.bytes under which every legal record fits."""
    return settings.body_bytes_max + BODY_MARGIN_BYTES


def wanted_config(settings: KafkaSettings, topic: Topic, *, copies: int) -> dict[str, str]:
    """Of a topic that is made anew."""
    common = {
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(max(MESSAGE_BYTES_MAX, message_bytes_min(settings))),
        "min.insync.replicas": str(IN_SYNC_MIN if copies >= COPIES else 1),
        "unclean.leader.election.enable": "false",
        "retention.bytes": str(FOR_EVER),
        "retention.ms": str(recovery_ms(settings, topic)),
    }
    if topic is Topic.USER_STATE:
        return {
            **common,
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": str(settings.user_state_lag_ms),
        }
    return {**common, "cleanup.policy": "delete"}


async def create_topics(settings: KafkaSettings, loop: AbstractEventLoop) -> list[Created]:
    """Make those that are not there; what is there is left alone. Raises BrokerGone."""
    # A controller answers when the topic is made, which takes longer than a question.
    cluster = Cluster(
        structs.replace(settings, ask_ms=CREATE_MS + settings.ask_ms),
        loop,
        [settings.name_of(topic) for topic in Topic],
    )
    try:
        found = await create_missing(settings, cluster)
        if not any(one.error for one in found):
            await led(settings, cluster)
        return found
    finally:
        await cluster.close()


async def led(settings: KafkaSettings, cluster: Cluster) -> None:
    """Until every partition has a leader that others know of. Raises BrokerGone when that takes longer than CREATE_MS."""
    try:
        async with asyncio.timeout(CREATE_MS / 1000):
            while not all(
                cluster.leader(settings.name_of(topic), number)
                for topic in Topic
                for number in range(settings.partitions_of(topic))
            ):
                await asyncio.sleep(settings.backoff_ms / 1000)
                await cluster.refresh()
    except TimeoutError:
        raise BrokerGone("topics made, but not led", sent=True) from None


async def create_missing(settings: KafkaSettings, cluster: Cluster) -> list[Created]:
    """The same over a cluster that is patient enough. Raises BrokerGone."""
    if not await cluster.refresh():
        raise cluster.last_gone or BrokerGone("no broker answers", sent=False)
    copies = min(COPIES, max(1, len(cluster.broker_ids())))
    found: list[Created] = []
    for topic in Topic:
        name = settings.name_of(topic)
        config = list(wanted_config(settings, topic, copies=copies).items())
        assignments: list[int] = []
        asked = [(name, settings.partitions_of(topic), copies, assignments, config)]
        answer = await cluster.ask_any(CreateTopicsRequest(asked, CREATE_MS, False))
        ((_, code, *message),) = answer.topic_errors
        error = (
            "" if code in (0, TOPIC_EXISTS) else f"{message[0] if message else ''} (error {code})"
        )
        found.append(Created(name=name, made=code == 0, error=error.strip()))
    cluster.want_refresh()
    return found


def tool(settings: KafkaSettings, script: str) -> str:
    """A program of the brokers' own and whom it asks; its file of a login and of TLS is the operator's to write."""
    asked = f"{script} --bootstrap-server {settings.brokers}"
    secured = settings.ssl_context is not None or settings.sasl_mechanism is not None
    return f"{asked} --command-config client.properties" if secured else asked


def create_command(settings: KafkaSettings, topic: Topic, *, copies: int) -> str:
    """What an operator can paste."""
    words = [
        f"{tool(settings, 'kafka-topics.sh')} --create --topic {settings.name_of(topic)}",
        f"--partitions {settings.partitions_of(topic)} --replication-factor {copies}",
    ]
    words += [
        f"--config {key}={value}"
        for key, value in wanted_config(settings, topic, copies=copies).items()
    ]
    return " ".join(words)


def alter_command(settings: KafkaSettings, topic: Topic, key: str, value: str) -> str:
    """What an operator can paste."""
    return (
        f"{tool(settings, 'kafka-configs.sh')} --alter --entity-type topics "
        f"--entity-name {settings.name_of(topic)} --add-config {key}={value}"
    )
