"""`qim smoke`: the checks, several at a time, each with users of its own; one line or JSON entry each."""

import argparse
import asyncio
import os
import time
from typing import Final

from msgspec import Struct

from qim.cli.arguments import UsageError, server
from qim.cli.command import Subparsers, add_command, asynchronous
from qim.cli.data_files import running_server, secret_of
from qim.cli.exit_codes import Exit
from qim.cli.output import print_json, say
from qim.cli.smoke import (
    checks_cursors,
    checks_delivery,
    checks_groups,
    checks_operator,
    checks_protocol,
    checks_sessions,
)
from qim.cli.smoke.stage import Check, Grounds, Skipped, Stage
from qim.cli.smoke.wire import Wire
from qim.cli.target import add_server_arguments, data_and_token, tenant_of, tls_of, token_claims
from qim.client import NotConnected
from qim.core.contract.tokens import AccessToken, sign_token

CHECKS: Final[tuple[Check, ...]] = (
    *checks_delivery.CHECKS,
    *checks_groups.CHECKS,
    *checks_sessions.CHECKS,
    *checks_protocol.CHECKS,
    *checks_cursors.CHECKS,
    *checks_operator.CHECKS,
)
AT_ONCE_MAX: Final = 6
CHECK_SECONDS_MAX: Final = 60.0
EXAMPLES = """\
  qim smoke                                        # beside an embedded server
  qim smoke --data ./data --json | jq .failed
  qim smoke --server im.example.org:7000 --token TOKEN    # what one user alone can check
  qim smoke --server 10.0.0.5:7000 --metrics 10.0.0.5:9100 --metrics 10.0.0.6:9101   # all, with $QIM_AUTH_SECRET
  qim smoke --only idempotency-conflict --only order-is-kept
"""
MORE = """
Each check uses users that never were before (with --token alone, that user) and leaves their few messages behind.
Tokens are signed with $QIM_AUTH_SECRET for a named server, with the data directory's secret for an embedded one.
Exit status 0: every check holds (skipped ones are named); 1: one doesn't."""


class Outcome(Struct, frozen=True, kw_only=True):
    """``status``: passed, failed or skipped; ``detail`` says why not passed."""

    name: str
    status: str
    seconds: float
    detail: str = ""


def add_parser(subparsers: Subparsers) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "smoke",
        asynchronous(_run),
        summary="check a running server end to end",
        examples=EXAMPLES,
        more=MORE,
    )
    names = ", ".join(check.name for check in CHECKS)
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        choices=[check.name for check in CHECKS],
        help=f"only this check; may be given again. Checks: {names}",
    )
    parser.add_argument("--json", action="store_true", help="ok, passed, failed, skipped, checks")
    parser.add_argument(
        "--metrics",
        type=server,
        action="append",
        metavar="HOST:PORT",
        help="an operator's endpoint, one for each process (default: found in the data directory)",
    )
    add_server_arguments(parser)


async def _run(args: argparse.Namespace) -> int:
    grounds = _grounds(args)
    try:
        await (await Wire.open(grounds.address, grounds.tls)).close()
    except (OSError, TimeoutError) as error:
        raise NotConnected(f"no server at {grounds.address}: {error}") from None
    room = asyncio.Semaphore(AT_ONCE_MAX)
    chosen = [check for check in CHECKS if not args.only or check.name in args.only]

    async def one(check: Check) -> Outcome:
        async with room:
            outcome = await _outcome(check, grounds)
        if not args.json:
            print(_line(outcome), flush=True)
        return outcome

    outcomes = await asyncio.gather(*map(one, chosen))
    counts = {status: _count(outcomes, status) for status in ("passed", "failed", "skipped")}
    if args.json:
        checks = [
            {"name": o.name, "status": o.status, "seconds": round(o.seconds, 3), "detail": o.detail}
            for o in outcomes
        ]
        print_json({"ok": not counts["failed"], **counts, "checks": checks})
    else:
        say(", ".join(f"{count} {status}" for status, count in counts.items() if count))
    return int(Exit.FAILED if counts["failed"] else Exit.DONE)


async def _outcome(check: Check, grounds: Grounds) -> Outcome:
    """A check that fails in whatever way is a failed check, never the end of the others."""
    begun = time.monotonic()
    status, detail = "passed", ""
    try:
        async with asyncio.timeout(CHECK_SECONDS_MAX), Stage(grounds) as stage:
            await check.run(stage)
            stage.judge_devices()
    except Skipped as why:
        status, detail = "skipped", str(why)
    except AssertionError as error:
        status, detail = "failed", str(error) or _where(error)
    except Exception as error:
        status, detail = "failed", f"{type(error).__name__}: {error} ({_where(error)})"
    return Outcome(name=check.name, status=status, seconds=time.monotonic() - begun, detail=detail)


def _where(error: BaseException) -> str:
    """The line of the check that did not hold."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if "checks_" in code.co_filename:
            place = f"{code.co_name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _grounds(args: argparse.Namespace) -> Grounds:
    named = args.server and not (args.token or args.data)
    given = os.environ.get("QIM_AUTH_SECRET", "").encode() if named else b""
    data, token = (args.data, args.token) if given else data_and_token(args)
    claims = None if token is None else token_claims(token)
    tenant = tenant_of(args, claims)
    if token is not None and claims is None and data is None:
        raise UsageError(
            "this token doesn't say whose it is; smoke needs one of `qim token`, or --data DIR"
        )
    running = None if data is None or (args.server and args.metrics) else running_server(data)
    metrics = args.metrics or ([running.metrics] if running else [])
    secret = given or (None if data is None else secret_of(data))
    return Grounds(
        address=args.server or (running.tcp if running else ""),
        metrics=tuple(metrics),
        tenant_id=tenant,
        sign=None if secret is None else (lambda user, ms: _signed(secret, tenant, user, ms)),
        token=token,
        token_user=claims.user_id if claims else 0,
        tls=tls_of(args),
    )


def _signed(secret: bytes, tenant: str, user: int, expires_in_ms: int) -> str:
    expires_at = time.time_ns() // 1_000_000 + expires_in_ms
    return sign_token(
        AccessToken(tenant_id=tenant, user_id=user, device_id=None, expires_at=expires_at), secret
    )


def _line(outcome: Outcome) -> str:
    mark = {"passed": "ok  ", "failed": "FAIL", "skipped": "skip"}[outcome.status]
    told = f"  {outcome.detail}" if outcome.detail else ""
    return f"{mark}  {outcome.name}  ({outcome.seconds:.2f} s){told}"


def _count(outcomes: list[Outcome], status: str) -> int:
    return sum(outcome.status == status for outcome in outcomes)
