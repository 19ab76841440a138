"""`qim sim audit`: the orphan-audit report of one world, as a ledger."""

import argparse
import json
from typing import Any

import msgspec

from qim.cli.command import Subparsers, add_command
from qim.cli.exit_codes import Exit
from qim.cli.sim.plans import add_seed_or_plan, plan_of
from qim.core.audit import Verdict
from qim.services.audit_report import report_as_json, report_as_text
from qim.sim.faults import tag_of
from qim.sim.plan import Plan
from qim.sim.run import run_scene
from qim.sim.scene import Kit, Scene

EXAMPLES = """\
  qim sim audit 17
  qim sim audit .qim/sim/store-17.json --json | jq .report.verdict
"""
MORE = """
Runs the world to its end, then the production auditor inside it: what was accepted, what stands in the outbox, what was
dispatched and what is missing in which mailbox, beside the faults of the world. Exit status: 0 CLEAN, 1 ORPHANS or a
violation, 4 INCOMPLETE, 2 wrong usage."""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "audit",
        _run,
        summary="the orphan audit of one world, with its ledger",
        examples=EXAMPLES,
        more=MORE,
    )
    parser.set_defaults(name="sim audit")
    add_seed_or_plan(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _run(args: argparse.Namespace) -> int:
    plan = plan_of(args)
    scene, report = run_scene(plan, Kit())
    audit = scene.audit_report
    told: dict[str, Any] = {
        "seed": plan.seed,
        "profile": plan.profile,
        "ledger": report.ledger,
        "report": report_as_json(audit) if audit is not None else None,
        "violations": msgspec.to_builtins(report.violations),
        "faults": _faults(plan),
    }
    if args.json:
        for violation in told["violations"]:
            violation["message_id"] = (
                violation["message_id"].hex()
                if isinstance(violation["message_id"], bytes)
                else violation["message_id"]
            )
        print(json.dumps(told))
    else:
        _tell(scene, told)
    if audit is None or audit.verdict is Verdict.ORPHANS or not report.clean:
        return int(Exit.FAILED)
    return int(Exit.DONE if audit.verdict is Verdict.CLEAN else Exit.INCOMPLETE)


def _tell(scene: Scene, told: dict[str, Any]) -> None:
    ledger = told["ledger"]
    print(f"asked by clients          {ledger['asked']:>6}")
    print(
        f"committed in the outbox   {ledger['committed']:>6}   (ineffective: {ledger['ineffective']})"
    )
    print(
        f"dispatches                {ledger['dispatches']:>6}   (repeated: {ledger['dispatches_repeated']})"
    )
    print(f"deliveries owed to users  {ledger['deliveries_owed']:>6}")
    print(f"applied on devices        {ledger['applied']:>6}")
    print()
    if told["report"] is None:
        print("the audit did not end")
    else:
        for line in report_as_text(told["report"]):
            print(line)
    if told["faults"]:
        print("\nfaults of this world:")
        for fault in told["faults"]:
            print(f"  {fault}")
    for finding in scene.history.findings:
        named = f" [message {finding.message_id.hex()}]" if finding.message_id else ""
        print(
            f"violated at {finding.at} ms: {finding.check} ({finding.role}): {finding.detail}{named}"
        )


def _faults(plan: Plan) -> list[str]:
    rows: list[str] = []
    for fault in plan.faults:
        fields = msgspec.structs.asdict(fault)
        at, until = fields.pop("at_ms"), fields.pop("until_ms")
        span = f"{at}–{until} ms" if until else f"{at} ms"
        detail = ", ".join(f"{name}={value}" for name, value in fields.items() if value)
        rows.append(f"{span}: {tag_of(type(fault))} {detail}")
    return rows
