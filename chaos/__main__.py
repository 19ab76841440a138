"""Chaos on real processes and servers: the same plans as the simulator's, the same checkers.

    python -m chaos run --seed 1 --minutes 2                 # a storm drawn from the seed, on a cluster of its own
    python -m chaos run --plan FILE                          # a plan as JSON, e.g. one that an earlier run saved
    python -m chaos run --seed 1 --minutes 2 --only crash pause
    python -m chaos plan --seed 1 --minutes 2                # only print it

Everything runs on free loopback ports in a folder of its own (--keep leaves it) and is ended by pid. Standard output is the
report, one JSON object. Exit status: 0 the run holds; 1 a check fired, something is owed or the audit is not CLEAN; 2 wrong
usage, or a fault that real parts can't have; 4 it could not be carried out, and nothing is judged; 130 interrupted.
"""

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from chaos.asking import RealAsking
from chaos.cluster import ChaosCluster, ClusterDeployment, counts_of
from chaos.injector import ClusterInjector
from chaos.names import UNKNOWN_NODE, unknown_names
from chaos.plan import HEAL_SHARE, MINUTE_MS, with_faults, workload
from chaos.run import ChaosRun, RunReport
from chaos.scene import RealScene
from chaos.storm import MAKERS, Cast, coverage, storm, unsupported
from qim.cli.exit_codes import Exit
from qim.sim.plan import Plan, Topology, decode_plan, encode_plan
from qim.sim.told import Told
from qim.sim.visible import Visible
from tests.integration.cluster.cluster import LEASE_TTL_MS, PARTITIONS, SHARDS
from tests.integration.testbed.etcd import EtcdMissing
from tests.integration.testbed.maven_jars import JarsMissing
from tests.integration.testbed.redis import ServerMissing
from tests.integration.testbed.server_process import ServerFailed

STORES: Final = 2


def topology(*, tiered: bool) -> Topology:
    """As worlds have it."""
    counts = counts_of(tiered=tiered)
    return Topology(
        writers=counts["writer"],
        fanouts=counts["fanout"],
        mailboxes=counts["mailbox"],
        sessions=counts["session"],
        gateways=counts["gateway"],
        archivers=counts.get("archiver", 0),
        outbox_partitions=PARTITIONS,
        shards=SHARDS,
        stores=STORES,
    )


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


class WrongUsage(Exception):
    """What can't be run as asked; the text says what to do."""


def planned(args: argparse.Namespace) -> Plan:
    """From a file, or drawn. Raises WrongUsage."""
    if args.plan is not None:
        return read_plan(args.plan, brokers=args.brokers, tiered=not args.hot)
    if not (args.minutes > 0 and args.rate > 0):
        raise WrongUsage("--minutes and --rate are above 0")
    if args.only == ["leader_change"] and args.brokers < 3:
        raise WrongUsage("leader_change needs --brokers 3")
    whole = topology(tiered=not args.hot)
    plan = workload(args.seed, minutes=args.minutes, sends_per_second=args.rate, topology=whole)
    processes = {
        role: tuple(f"{role}-{number}" for number in range(1, count + 1))
        for role, count in counts_of(tiered=not args.hot).items()
    }
    cast = Cast(
        processes=processes,
        devices=device_names(plan),
        stores=STORES,
        brokers=args.brokers,
        lease_ttl_ms=LEASE_TTL_MS,
    )
    until = int(args.minutes * MINUTE_MS * HEAL_SHARE)
    return with_faults(plan, storm(args.seed, cast, until_ms=until, only=tuple(args.only)))


def device_names(plan: Plan) -> tuple[str, ...]:
    """As its faults name them."""
    return tuple(f"client-{d.user_id}-{d.device_id.decode()}" for d in plan.devices)


def read_plan(path: Path, *, brokers: int, tiered: bool = True) -> Plan:
    """A plan as JSON, for the cluster that is here. Raises WrongUsage: no such plan, a fault that real parts can't have, or that names nobody here."""
    try:
        plan = decode_plan(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise WrongUsage(f"{path} is no plan: {error}; `python -m chaos plan` prints one") from None
    if told := unsupported(plan.faults):
        raise WrongUsage(f"{path} has faults that real parts can't have: {'; '.join(told)}")
    unknown = unknown_names(
        plan.faults,
        counts=counts_of(tiered=tiered),
        devices=device_names(plan),
        stores=STORES,
        brokers=brokers,
    )
    if unknown:
        raise WrongUsage(f"{UNKNOWN_NODE}: {path} names what isn't here: {'; '.join(unknown)}")
    return plan


async def run_on(cluster: ChaosCluster, plan: Plan, folder: Path) -> RunReport:
    """One run on a cluster whose servers stand already; its processes are started here, behind their proxies."""
    await cluster.start_proxies()
    deployment = ClusterDeployment(cluster)
    injector = ClusterInjector(cluster, say=say)
    try:
        for process in cluster.processes.values():
            process.launch()
        for process in cluster.processes.values():
            await asyncio.to_thread(process.wait_ready)
        await deployment.start()

        async def ask_users(scene: RealScene, visible: Visible) -> dict[int, Told]:
            assert deployment.registry is not None
            apart = injector.clocks_apart_ms
            async with RealAsking(deployment.registry, spread_ms=apart) as asking:
                return await asking.told(scene, visible)

        run = ChaosRun(plan, deployment, injector, folder, say=say, ask_users=ask_users)
        injector.scene = run.scene
        return await run.run()
    finally:
        await deployment.close()
        await cluster.close_proxies()


def died(cluster: ChaosCluster) -> list[str]:
    """What processes logged of their own end or of a broken rule."""
    found = []
    for process in cluster.processes.values():
        for record in process.log_records():
            if record["event"] in ("machine died", "violation"):
                found.append(f"{process.name}: {json.dumps(record)[:600]}")
        if "Traceback" in process.log():
            found.append(f"{process.name}: a traceback in its log")
    return found


def run(args: argparse.Namespace, plan: Plan) -> int:
    """The whole command."""
    tiered = not args.hot
    # A plan of a world may count archivers that are not here: nothing is owed by them.
    archivers = topology(tiered=tiered).archivers
    plan = replace(plan, topology=replace(plan.topology, archivers=archivers))
    folder = Path(tempfile.mkdtemp(prefix="qim-chaos-"))
    (folder / "plan.json").write_bytes(encode_plan(plan))
    say(f"seed {plan.seed}: {len(plan.operations)} operations, {len(plan.faults)} faults; {folder}")
    # A run that is told to stop ends what it started, as at Ctrl-C.
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    status = Exit.INCOMPLETE
    try:
        status = carried_out(args, plan, folder)
    except (ServerFailed, ServerMissing, EtcdMissing, JarsMissing) as error:
        say(f"chaos: not carried out, nothing is judged: {error}")
    except KeyboardInterrupt:
        say("chaos: interrupted, nothing is judged")
        status = Exit.INTERRUPTED
    except Exception:
        traceback.print_exc()
        say("chaos: it ended early, nothing is judged")
    finally:
        signal.signal(signal.SIGTERM, before)
    if status is not Exit.DONE or args.keep:
        say(f"logs, plan and disks are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return int(status)


def carried_out(args: argparse.Namespace, plan: Plan, folder: Path) -> Exit:
    """Servers, run, report; nothing of it runs on. Raises what any part of it raises: then nothing is judged."""
    cluster = ChaosCluster(folder, brokers=args.brokers, tiered=not args.hot)
    try:
        cluster.start_servers()
        report = asyncio.run(run_on(cluster, plan, folder / "devices"))
        broken = died(cluster)
        print(json.dumps(told_of(report, broken), indent=None if args.json else 2))
        if report.holds and not broken:
            return Exit.DONE
        say("does NOT hold")
        return Exit.FAILED
    finally:
        cluster.end()


def told_of(report: RunReport, broken: list[str]) -> dict[str, Any]:
    """The report, with which of the simulated faults were reproduced for real."""
    told: dict[str, Any] = msgspec.to_builtins(report)
    told["processes"] = broken
    told["reproduced"] = coverage(report.faults)
    return told


def main(words: Sequence[str] | None = None) -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("run", "plan"), help="run it, or print the plan alone")
    parser.add_argument(
        "--seed", type=int, default=1, help="workload and storm are drawn from it (1)"
    )
    parser.add_argument("--plan", type=Path, metavar="FILE", help="instead of a seed")
    parser.add_argument("--minutes", type=float, default=2.0, help="of workload (2)")
    parser.add_argument("--rate", type=float, default=10.0, help="sends a second (10)")
    parser.add_argument("--brokers", type=int, default=3, choices=(1, 3), help="of Kafka (3)")
    parser.add_argument(
        "--hot", action="store_true", help="without an archive: no Cassandra, no archivers"
    )
    kinds = ", ".join(MAKERS)
    parser.add_argument(
        "--only", nargs="+", default=[], choices=MAKERS, metavar="KIND", help=f"of {kinds}"
    )
    parser.add_argument("--keep", action="store_true", help="leave logs and data")
    parser.add_argument("--json", action="store_true", help="the report on one line")
    args = parser.parse_args(words)
    try:
        plan = planned(args)
    except WrongUsage as error:
        say(f"chaos: {error}")
        return int(Exit.USAGE)
    if args.what == "plan":
        print(json.dumps(json.loads(encode_plan(plan)), indent=2))
        return int(Exit.DONE)
    return run(args, plan)


if __name__ == "__main__":
    sys.exit(main())
