"""`qim sim`: campaigns of simulated worlds, readable replays, and the orphan audit of a world."""

from qim.cli.command import Subparsers, add_command
from qim.cli.sim import audit, replay, run

EXAMPLES = """\
  qim sim run --seeds 500                         # fresh worlds of the swarm profile, failures grouped
  qim sim run --seeds 2000 --start 0 -j 2 --json
  qim sim replay 17 --profile swarm --until 5000  # the readable story of seed 17
  qim sim replay .qim/sim/swarm-17.json --follow MESSAGE_ID
  qim sim audit 17 --profile store
"""
MORE = """
One seed is one whole world: clients, gateways, writers, fanouts, mailboxes, hot store, logs, registry, network and
clocks in one thread without real time. The machines, the wire bytes and the Lua are those of production. The same seed
gives the same digest everywhere. Profiles: calm (no faults), swarm (everything, drawn per seed), zombie, store, log,
archive, client, crowd, mended, repaired. docs/simulator.md tells the rest."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the commands."""
    parser = add_command(
        subparsers,
        "sim",
        lambda args: 0,
        summary="run worlds in the simulator, read what happened in one",
        examples=EXAMPLES,
        more=MORE,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    run.add_parser(actions)
    replay.add_parser(actions)
    audit.add_parser(actions)


__all__ = ["add_parser"]
