"""Each start-up check of the Kafka log refuses on a real broker, and names what it found, needs, and the command."""

import asyncio
import json
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from qim.adapters.kafka.checks import check_there
from qim.adapters.kafka.log import KafkaLog
from qim.adapters.kafka.settings import KafkaSettings
from qim.adapters.kafka.topics import create_missing
from qim.adapters.kafka.wire import NO_TOPIC_ID
from qim.adapters.start_refused import StartRefused
from qim.cli.main import main
from qim.core.ports.log import Topic
from tests.adapters.log.kafka_asked import HOUR_MS, PATIENT, Admin, settings_for
from tests.integration.testbed.kafka import KafkaBroker
from tests.integration.testbed.maven_jars import jars_of
from tests.integration.testbed.server_process import free_port

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("kafka")]

GOOD = {
    "message__timestamp__type": "LogAppendTime",
    "max__message__bytes": "4194304",
    "cleanup__policy": "delete",
    "retention__ms": str(HOUR_MS),
    "retention__bytes": "-1",
}


class Operator:
    """Topics of one test, as the test wants them, and what the log says to them."""

    def __init__(self, brokers: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.settings = settings_for(brokers, **PATIENT)
        self.admin = Admin(self.settings, self.loop)

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def refusal(self, settings: KafkaSettings | None = None) -> StartRefused:
        """Of a start with these topics."""
        log = KafkaLog(settings or self.settings, self.loop)
        with pytest.raises(StartRefused) as refused:
            self.run(log.start())
        return refused.value

    def started(self) -> None:
        """It starts."""
        log = KafkaLog(self.settings, self.loop)
        self.run(log.start())
        self.run(log.close())

    def close(self) -> None:
        self.run(self.admin.cluster.close())
        self.loop.close()


@pytest.fixture
def operator(kafka_brokers: str) -> Iterator[Operator]:
    chosen = Operator(kafka_brokers)
    yield chosen
    chosen.close()


@pytest.fixture
def served(operator: Operator) -> Operator:
    """All topics as they should be."""
    operator.run(operator.admin.create())
    return operator


def test_nobody_there(operator: Operator) -> None:
    port = free_port()
    refused = operator.refusal(
        structs.replace(operator.settings, brokers=f"127.0.0.1:{port}", start_ms=300)
    )
    assert refused.code == "kafka_unreachable"
    assert f"127.0.0.1:{port}" in refused.command


def test_a_missing_topic_and_the_command_that_makes_it(operator: Operator) -> None:
    refused = operator.refusal()
    assert refused.code == "kafka_topic_missing"
    assert operator.settings.outbox_topic in refused.what
    assert "qim topics create" in refused.command
    assert f"--create --topic {operator.settings.outbox_topic} --partitions 2" in refused.command
    made = operator.run(create_missing(operator.settings, operator.admin.cluster))
    assert [(one.made, one.error) for one in made] == [(True, "")] * 3
    operator.run(operator.admin.settled())
    operator.started()
    again = operator.run(create_missing(operator.settings, operator.admin.cluster))
    assert [(one.made, one.error) for one in again] == [(False, "")] * 3


@pytest.mark.parametrize(("wanted", "in_command"), [(3, "--partitions 3"), (1, "a new topic")])
def test_a_wrong_partition_count(served: Operator, wanted: int, in_command: str) -> None:
    refused = served.refusal(structs.replace(served.settings, outbox_partitions=wanted))
    assert refused.code == "kafka_partition_count"
    assert (refused.got, refused.expected) == ("2", str(wanted))
    assert in_command in refused.command


def test_one_copy_is_for_development_on_loopback_only(served: Operator) -> None:
    refused = served.refusal(structs.replace(served.settings, allow_single_broker=False))
    assert refused.code == "kafka_replication"
    assert refused.got == "1 on 1 brokers"
    cluster = served.admin.cluster
    cluster._addresses = {1: ("kafka.example.org", 9092)}
    with pytest.raises(StartRefused) as away:
        check_there(served.settings, cluster, Topic.OUTBOX)
    assert away.value.code == "kafka_single_broker"
    assert "kafka.example.org" in away.value.got


def test_a_topic_without_an_id(served: Operator) -> None:
    """No broker of the test bed is so old: the view of the cluster is made to say what one would."""
    cluster = served.admin.cluster
    cluster._topic_ids[served.settings.outbox_topic] = NO_TOPIC_ID
    with pytest.raises(StartRefused) as refused:
        check_there(served.settings, cluster, Topic.OUTBOX)
    assert refused.value.code == "kafka_topic_id_zero"


@pytest.mark.parametrize(
    ("topic", "key", "value", "code", "remedy"),
    [
        (Topic.OUTBOX, "retention.ms", "1000", "kafka_retention_short", f"retention.ms={HOUR_MS}"),
        (Topic.DISPATCH, "retention.ms", "3599999", "kafka_retention_short", "retention.ms=3600000"),
        (Topic.DISPATCH, "retention.bytes", "1048576", "kafka_retention_bytes", "retention.bytes=-1"),
        (Topic.DISPATCH, "message.timestamp.type", "CreateTime", "kafka_timestamps", "LogAppendTime"),
        (Topic.OUTBOX, "message.timestamp.type", "CreateTime", "kafka_timestamps", "LogAppendTime"),
        (Topic.OUTBOX, "max.message.bytes", "131071", "kafka_message_bytes", "bytes=131072"),
        (Topic.OUTBOX, "cleanup.policy", "compact", "kafka_cleanup_policy", "policy=delete"),
        (Topic.DISPATCH, "cleanup.policy", "compact,delete", "kafka_cleanup_policy", "=delete"),
        (Topic.USER_STATE, "cleanup.policy", "delete", "kafka_cleanup_policy", "policy=compact"),
        (Topic.USER_STATE, "min.compaction.lag.ms", "5", "kafka_compaction_lag", "lag.ms=3600000"),
        (
            Topic.OUTBOX,
            "unclean.leader.election.enable",
            "true",
            "kafka_unclean_election",
            "enable=false",
        ),
        (Topic.DISPATCH, "compression.type", "zstd", "kafka_compression", "type=producer"),
    ],
)  # fmt: skip
def test_a_setting_that_would_lose_something(
    served: Operator, topic: Topic, key: str, value: str, code: str, remedy: str
) -> None:
    served.started()
    config = dict(GOOD)
    if topic is Topic.USER_STATE:
        config |= {"cleanup__policy": "compact", "min__compaction__lag__ms": str(HOUR_MS)}
    config[key.replace(".", "__")] = value
    served.run(served.admin.configure(topic, **config))
    refused = served.refusal()
    assert refused.code == code
    assert key in refused.what
    assert served.settings.name_of(topic) in refused.what
    assert refused.got == value
    assert f"--entity-name {served.settings.name_of(topic)}" in refused.command
    assert remedy in refused.command


WRONG = {
    "cleanup__policy": "compact",
    "retention__ms": "1000",
    "retention__bytes": "1048576",
    "message__timestamp__type": "CreateTime",
    "max__message__bytes": "131071",
    "unclean__leader__election__enable": "true",
    "compression__type": "zstd",
}
WRONG_STATES = GOOD | {"cleanup__policy": "delete", "min__compaction__lag__ms": "5"}
COMMAND_SECONDS_MAX = 120


def test_the_command_of_each_refusal_puts_it_right(served: Operator) -> None:
    """Carried out as it is printed, one after another, until the start passes: none is told twice."""
    served.run(served.admin.configure(Topic.OUTBOX, **WRONG))
    served.run(served.admin.configure(Topic.USER_STATE, **WRONG_STATES))
    told = []
    for _ in range(len(WRONG) + 2):
        refused = served.refusal()
        told.append((refused.what, refused.code))
        served.run(served.admin.told(*carried_out(refused.command, served.settings)))
    assert len(set(told)) == len(WRONG) + 2, told
    served.started()


def carried_out(command: str, settings: KafkaSettings) -> tuple[Topic, dict[str, str]]:
    """What it has set, of which topic. kafka-configs.sh starts this class with its words; the jars of the test bed are without scripts."""
    script, *words = shlex.split(command)
    assert script == "kafka-configs.sh", command
    java = ["java", "-cp", f"{jars_of('kafka')}/*", "kafka.admin.ConfigCommand", *words]
    ended = subprocess.run(
        java, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False
    )
    assert ended.returncode == 0, (command, ended.stdout, ended.stderr)
    name, pair = (words[words.index(word) + 1] for word in ("--entity-name", "--add-config"))
    key, _, value = pair.partition("=")
    (topic,) = [topic for topic in Topic if settings.name_of(topic) == name]
    return topic, {key: value}


def test_our_own_limit_counts_too(served: Operator) -> None:
    refused = served.refusal(structs.replace(served.settings, batch_bytes_max=100_000))
    assert refused.code == "kafka_producer_bytes"
    assert refused.got == "100000"


def test_a_longer_retention_or_none_is_enough(served: Operator) -> None:
    for value in ("-1", str(2 * HOUR_MS)):
        served.run(served.admin.configure(Topic.OUTBOX, **{**GOOD, "retention__ms": value}))
        served.started()


def test_a_broker_that_makes_topics_by_itself(tmp_path_factory: pytest.TempPathFactory) -> None:
    broker = KafkaBroker(
        tmp_path_factory.mktemp("auto"), settings={"auto.create.topics.enable": "true"}
    )
    broker.start()
    operator = Operator(broker.address)
    try:
        operator.run(operator.admin.create())
        refused = operator.refusal()
        assert refused.code == "kafka_auto_create"
        assert "auto.create.topics.enable=false" in refused.command
    finally:
        operator.close()
        broker.kill()


def test_the_command_makes_checks_and_prints(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = operator.settings
    told = {
        "QIM_REDPANDA_BROKERS": settings.brokers,
        "QIM_OUTBOX_TOPIC": settings.outbox_topic,
        "QIM_OUTBOX_PARTITION_COUNT": "2",
        "QIM_OUTBOX_RECOVERY_WINDOW_MS": str(HOUR_MS),
        "QIM_DISPATCH_TOPIC": settings.dispatch_topic,
        "QIM_DISPATCH_RECOVERY_WINDOW_MS": str(HOUR_MS),
        "QIM_USER_STATE_TOPIC": settings.user_state_topic,
        "QIM_MAILBOX_SHARD_COUNT": "4",
        "QIM_REDPANDA_ALLOW_SINGLE_BROKER": "1",
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert main(["topics", "check"]) == 2
    assert "qim topics create" in capsys.readouterr().err
    assert main(["topics", "create"]) == 0
    made = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["made"] for one in made] == [True] * 3
    assert main(["topics", "check"]) == 0
    assert json.loads(capsys.readouterr().out)["topics"][0] == settings.outbox_topic
    assert main(["topics", "print"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    monkeypatch.delenv("QIM_OUTBOX_TOPIC")
    assert main(["topics", "print"]) == 2
    assert "QIM_OUTBOX_TOPIC is not set" in capsys.readouterr().err
