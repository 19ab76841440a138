"""`qim topics`: make, check or print the three log topics on Kafka or Redpanda."""

import argparse
import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from qim.adapters.start_refused import StartRefused
from qim.cli.arguments import UsageError
from qim.cli.command import Subparsers, add_command
from qim.cli.exit_codes import Exit
from qim.cli.output import print_json
from qim.core.ports.log import Topic

if TYPE_CHECKING:
    from qim.adapters.kafka.settings import KafkaSettings

EXAMPLES = """\
  qim topics create --config /etc/qim.toml     # those that are missing, as the checks want them; the others are left alone
  qim topics check                             # every start-up check of the log; status 2 and the command where one fails
  qim topics print                             # the kafka-topics.sh commands, for whoever may create and we may not
"""
MORE = """
Reads what `qim serve` reads (--config or $QIM_CONFIG, and the environment): QIM_REDPANDA_BROKERS, QIM_OUTBOX_TOPIC,
QIM_DISPATCH_TOPIC, QIM_USER_STATE_TOPIC, partition counts and recovery windows. Three copies on three brokers; a single
broker on loopback with QIM_REDPANDA_ALLOW_SINGLE_BROKER=1."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "topics",
        _run,
        summary="make, check or print the log topics on Kafka or Redpanda",
        examples=EXAMPLES,
        more=MORE,
    )
    parser.add_argument(
        "action",
        choices=("create", "check", "print"),
        help="make what is missing, judge, or print commands",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML (default: $QIM_CONFIG)")


def _run(args: argparse.Namespace) -> int:
    try:
        settings = _settings(args.config)
        if args.action == "print":
            return _print(settings)
        if args.action == "create" and not asyncio.run(_create(settings)):
            return int(Exit.FAILED)
        asyncio.run(_check(settings))
    except StartRefused as refusal:
        raise UsageError(str(refusal)) from None
    if args.action == "check":
        print_json({"ok": True, "topics": [settings.name_of(topic) for topic in Topic]})
    return int(Exit.DONE)


def _settings(file: Path | None) -> "KafkaSettings":
    """Raises StartRefused."""
    # The other commands neither need the libraries of a cluster nor wait for them.
    from qim.services.cluster.log_settings import NEEDED, log_settings
    from qim.services.roles import ServiceRole
    from qim.services.settings import log_faults, read_settings
    from qim.services.settings.table import VARIABLES

    told = read_settings(os.environ, file).require()
    for variable in VARIABLES:
        if variable.name in NEEDED and getattr(told, variable.key) is None:
            raise StartRefused(
                "config_missing",
                variable.name,
                got="not set",
                expected=variable.kind.expected,
                command=f"export {variable.name}=…",
            )
    for refused in log_faults(told):
        raise refused
    return log_settings(told, ServiceRole.FANOUT, client_id="qim-topics")


def _print(settings: "KafkaSettings") -> int:
    from qim.adapters.kafka.topics import COPIES, create_command

    copies = 1 if settings.allow_single_broker else COPIES
    for topic in Topic:
        print(create_command(settings, topic, copies=copies))
    return int(Exit.DONE)


async def _create(settings: "KafkaSettings") -> bool:
    """Whether all are there now. Raises StartRefused."""
    from qim.adapters.kafka.checks import why_no_start
    from qim.adapters.kafka.cluster import BrokerGone
    from qim.adapters.kafka.topics import create_topics

    try:
        made = await create_topics(settings, asyncio.get_running_loop())
    except BrokerGone as gone:
        raise why_no_start(settings, gone) from None
    for one in made:
        print_json({"topic": one.name, "made": one.made, "error": one.error or None})
    return not any(one.error for one in made)


async def _check(settings: "KafkaSettings") -> None:
    """Raises StartRefused."""
    from qim.adapters.kafka.log import check_topics

    await check_topics(settings, asyncio.get_running_loop())
