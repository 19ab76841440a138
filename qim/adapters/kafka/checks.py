"""What must be true of the brokers and topics before anything is written; each refusal names the command that mends it.

Every rule is here because without it something acknowledged can be lost or misread: a log that forgets before its
readers have recovered, a copy too few, a leader that never had the record, a day bucket made from a client's clock.
A setting that a broker doesn't know (Redpanda has no unclean elections to switch off) can't be wrong.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from aiokafka.protocol.admin import DescribeConfigsRequest

from qim.adapters.kafka.cluster import BrokerGone, Cluster, Lane
from qim.adapters.kafka.settings import BATCH_OVERHEAD_BYTES, KafkaSettings
from qim.adapters.kafka.topics import (
    COPIES,
    FOR_EVER,
    IN_SYNC_MIN,
    alter_command,
    create_command,
    message_bytes_min,
    recovery_ms,
    tool,
)
from qim.adapters.kafka.wire import NO_TOPIC_ID
from qim.adapters.loopback import is_loopback
from qim.adapters.start_refused import StartRefused
from qim.core.ports.log import Topic

LOG: Final = logging.getLogger(__name__)
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4

Config = Mapping[str, str | None]


async def check_all(settings: KafkaSettings, cluster: Cluster) -> dict[str, int]:
    """max.message.bytes a topic name. Raises StartRefused, BrokerGone."""
    for topic in Topic:
        check_there(settings, cluster, topic)
    await _check_brokers(settings, cluster)
    limits: dict[str, int] = {}
    for topic in Topic:
        config = await read_config(settings, cluster, TOPIC_RESOURCE, settings.name_of(topic))
        for rule in RULES:
            rule(settings, cluster, topic, config)
        limit = int(config.get("max.message.bytes") or settings.batch_bytes_max)
        limits[settings.name_of(topic)] = limit
    return limits


async def read_config(
    settings: KafkaSettings, cluster: Cluster, kind: int, name: str, *, node: int | None = None
) -> dict[str, str | None]:
    """Effective values by their Kafka names; a broker knows only its own. Raises BrokerGone, StartRefused."""
    request = DescribeConfigsRequest([(kind, name, None)], False)
    if node is None:
        answer = await cluster.ask_any(request)
    else:
        answer = await cluster.ask(node, Lane.ASK, request)
    ((code, message, _, _, entries),) = answer.resources
    if code != 0:
        raise StartRefused(
            "kafka_config_hidden",
            f"the answer about the configuration of {name}",
            got=f"error {code} {message or ''}".strip(),
            expected="its configuration",
            command=f"{tool(settings, 'kafka-acls.sh')} --add --allow-principal User:{settings.sasl_username or '…'} "
            "--operation DescribeConfigs --cluster --topic '*'",
        )
    return {entry[0]: entry[1] for entry in entries}


def why_no_start(settings: KafkaSettings, gone: BrokerGone) -> StartRefused:
    """No broker answered at all, or none that we trust and that trusts us."""
    if gone.hopeless:
        host, port = settings.bootstrap()[0]
        return StartRefused(
            "kafka_not_trusted",
            f"the connection to the log at {settings.brokers}",
            got=str(gone),
            expected="a certificate that QIM_REDPANDA_TLS_CA vouches for, and a broker that knows QIM_REDPANDA_SASL_USER",
            command=f"openssl s_client -connect {host}:{port} -CAfile $QIM_REDPANDA_TLS_CA -verify_return_error",
        )
    return StartRefused(
        "kafka_unreachable",
        f"the log at {settings.brokers}",
        got=f"silent ({gone})",
        expected="a Kafka or Redpanda that answers",
        command=tool(settings, "kafka-broker-api-versions.sh"),
    )


# ---------------------------------------------------------------- there at all


def check_there(settings: KafkaSettings, cluster: Cluster, topic: Topic) -> None:
    """The topic, its id, its partitions, its copies."""
    name = settings.name_of(topic)
    copies = min(COPIES, max(1, len(cluster.broker_ids())))
    leaders = cluster.partitions(name)
    if leaders is None:
        raise StartRefused(
            "kafka_topic_missing",
            f"topic {name}",
            got="not there",
            expected=f"a topic of {settings.partitions_of(topic)} partitions",
            command=f"qim topics create, or {create_command(settings, topic, copies=copies)}",
        )
    if cluster.topic_id(name) == NO_TOPIC_ID:
        raise StartRefused(
            "kafka_topic_id_zero",
            f"the id of topic {name}",
            got="zero",
            expected="an id that tells one creation of the topic from the next (KIP-516)",
            command="run Kafka 2.8 or later with KRaft, or a Redpanda with topic ids; then make the topic anew",
        )
    wanted = settings.partitions_of(topic)
    if len(leaders) != wanted:
        more = f"{tool(settings, 'kafka-topics.sh')} --alter --topic {name} --partitions {wanted}"
        fewer = "partitions can't be taken away: make a new topic and name it in the configuration"
        raise StartRefused(
            "kafka_partition_count",
            f"the partition count of topic {name}",
            got=str(len(leaders)),
            expected=str(wanted),
            command=more if len(leaders) < wanted else fewer,
        )
    _check_copies(settings, cluster, topic, min(leaders.values(), default=0))


def _check_copies(settings: KafkaSettings, cluster: Cluster, topic: Topic, copies: int) -> None:
    name = settings.name_of(topic)
    if copies >= COPIES:
        return
    if copies >= 1 and len(cluster.broker_ids()) == 1 and settings.allow_single_broker:
        if all(is_loopback(host) for host in cluster.hosts()):
            return
        raise StartRefused(
            "kafka_single_broker",
            "the one broker",
            got=f"at {', '.join(cluster.hosts())}",
            expected="on loopback, where one copy is allowed for development; three brokers elsewhere",
            command="export QIM_REDPANDA_ALLOW_SINGLE_BROKER=0 QIM_REDPANDA_BROKERS=…  # three of them",
        )
    single = len(cluster.broker_ids()) < COPIES
    raise StartRefused(
        "kafka_replication",
        f"the replication factor of topic {name}",
        got=f"{copies} on {len(cluster.broker_ids())} brokers",
        expected=f"{COPIES} (a single broker on loopback: QIM_REDPANDA_ALLOW_SINGLE_BROKER=1)",
        command="add brokers and make the topic anew: qim topics create"
        if single
        else f"{tool(settings, 'kafka-reassign-partitions.sh')} with {COPIES} replicas a partition of {name}",
    )


async def _check_brokers(settings: KafkaSettings, cluster: Cluster) -> None:
    for node in cluster.broker_ids():
        try:
            config = await read_config(settings, cluster, BROKER_RESOURCE, str(node), node=node)
        except BrokerGone as gone:
            # One broker that is down must not keep us from starting: that is what the copies are for.
            LOG.warning("configuration of broker %d not seen: %s", node, gone)
            continue
        if (config.get("auto.create.topics.enable") or "false") != "false":
            raise StartRefused(
                "kafka_auto_create",
                f"auto.create.topics.enable of broker {node}",
                got="true",
                expected="false: a mistyped name would be a new, empty log instead of an error",
                command="set auto.create.topics.enable=false in server.properties (Redpanda: rpk cluster config set"
                " auto_create_topics_enabled false) and restart the broker",
            )


# ---------------------------------------------------------------- configured as it must be


def _refuse(
    settings: KafkaSettings, topic: Topic, code: str, key: str, config: Config, value: str, why: str
) -> StartRefused:
    return StartRefused(
        code,
        f"{key} of topic {settings.name_of(topic)}",
        got=str(config.get(key)),
        expected=why,
        command=alter_command(settings, topic, key, value),
    )


def _policy(settings: KafkaSettings, cluster: Cluster, topic: Topic, config: Config) -> None:
    wanted = "compact" if topic is Topic.USER_STATE else "delete"
    if config.get("cleanup.policy") != wanted:
        raise _refuse(
            settings, topic, "kafka_cleanup_policy", "cleanup.policy", config, wanted, wanted
        )


def _retention(settings: KafkaSettings, cluster: Cluster, topic: Topic, config: Config) -> None:
    if topic is Topic.USER_STATE:
        return
    least = recovery_ms(settings, topic)
    kept = int(config.get("retention.ms") or FOR_EVER)
    if kept != FOR_EVER and kept < least:
        why = f"at least the recovery window of {least} ms"
        raise _refuse(
            settings, topic, "kafka_retention_short", "retention.ms", config, str(least), why
        )
    if int(config.get("retention.bytes") or FOR_EVER) != FOR_EVER:
        why = "-1: a limit in bytes forgets before the recovery window is over, under load"
        raise _refuse(
            settings, topic, "kafka_retention_bytes", "retention.bytes", config, "-1", why
        )


def _compaction(settings: KafkaSettings, cluster: Cluster, topic: Topic, config: Config) -> None:
    least = settings.user_state_lag_ms
    if topic is not Topic.USER_STATE or int(config.get("min.compaction.lag.ms") or 0) >= least:
        return
    why = f"at least {least} ms: who rebuilds a lost tail must meet again what it met before"
    raise _refuse(
        settings, topic, "kafka_compaction_lag", "min.compaction.lag.ms", config, str(least), why
    )


def _timestamps(settings: KafkaSettings, cluster: Cluster, topic: Topic, config: Config) -> None:
    key, wanted = "message.timestamp.type", "LogAppendTime"
    if config.get(key) != wanted:
        why = f"{wanted}: days are judged by the log's clock, not by a producer's"
        raise _refuse(settings, topic, "kafka_timestamps", key, config, wanted, why)


def _sizes(settings: KafkaSettings, cluster: Cluster, topic: Topic, config: Config) -> None:
    key, least = "max.message.bytes", message_bytes_min(settings)
    if int(config.get(key) or least) < least:
        why = f"at least {least}: the body limit of {settings.body_bytes_max} and 64 KiB"
        raise _refuse(settings, topic, "kafka_message_bytes", key, config, str(least), why)
    own = min(settings.batch_bytes_max, settings.request_bytes_max - BATCH_OVERHEAD_BYTES)
    if own < least:
        raise StartRefused(
            "kafka_producer_bytes",
            "our own limit on a record batch",
            got=str(own),
            expected=f"at least {least}: the body limit of {settings.body_bytes_max} and 64 KiB",
            command=f"raise batch_bytes_max and request_bytes_max of KafkaSettings above {least}",
        )


def _in_sync(settings: KafkaSettings, cluster: Cluster, topic: Topic, config: Config) -> None:
    copies = min((cluster.partitions(settings.name_of(topic)) or {0: 0}).values())
    key = "min.insync.replicas"
    found = config.get(key)
    if copies < COPIES or found is None:
        return
    if int(found) < IN_SYNC_MIN:
        why = f"at least {IN_SYNC_MIN}: else an acknowledged record may stand on one disk only"
        raise _refuse(settings, topic, "kafka_in_sync", key, config, str(IN_SYNC_MIN), why)
    if int(found) >= copies:
        why = f"below the {copies} replicas: else one broker down stops every append"
        raise _refuse(settings, topic, "kafka_in_sync", key, config, str(IN_SYNC_MIN), why)


def _elections(settings: KafkaSettings, cluster: Cluster, topic: Topic, config: Config) -> None:
    key = "unclean.leader.election.enable"
    if (config.get(key) or "false") != "false":
        why = "false: a leader that never had an acknowledged record would rewrite its offset"
        raise _refuse(settings, topic, "kafka_unclean_election", key, config, "false", why)


def _compression(settings: KafkaSettings, cluster: Cluster, topic: Topic, config: Config) -> None:
    key = "compression.type"
    if (config.get(key) or "producer") not in ("producer", "uncompressed", "gzip"):
        why = "producer: batches are sent as they are, and read without further libraries"
        raise _refuse(settings, topic, "kafka_compression", key, config, "producer", why)


RULES: Final[tuple[Callable[[KafkaSettings, Cluster, Topic, Config], None], ...]] = (
    _policy,
    _retention,
    _compaction,
    _timestamps,
    _sizes,
    _in_sync,
    _elections,
    _compression,
)
