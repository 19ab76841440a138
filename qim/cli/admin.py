"""What commands that change a cluster have in common: the auditor they ask, and the certificate they show (decision 0025)."""

import argparse
from typing import TYPE_CHECKING, Any

from qim.cli.arguments import UsageError, server
from qim.cli.output import say
from qim.client import NotConnected

if TYPE_CHECKING:
    from qim.core.contract.rpc_admin import AdminOrder
    from qim.services.settings import Settings


def add_auditor(parser: argparse.ArgumentParser) -> None:
    """--auditor."""
    parser.add_argument(
        "--auditor",
        type=server,
        metavar="HOST:PORT",
        help="where the cluster's auditor takes orders (default: QIM_AUDITOR_LISTEN)",
    )


def ordered(
    settings: "Settings", auditor: str | None, order: "AdminOrder", seconds_max: float
) -> dict[str, Any]:
    """The auditor's report. Raises UsageError (who we are isn't accepted, or the order), NotConnected."""
    from qim.adapters.rpc.admin import AuditorUnreachable
    from qim.adapters.start_refused import StartRefused
    from qim.services.cluster.admin import auditor_address
    from qim.services.cluster.admin import ordered as asked

    address = auditor or auditor_address(settings)
    say(f"asking the auditor at {address}")
    try:
        return asked(settings, address, order, seconds_max)
    except AuditorUnreachable as error:
        raise NotConnected(str(error)) from None
    except StartRefused as refused:
        raise UsageError(str(refused)) from None


def proved(settings: "Settings", what: str) -> None:
    """Who starts this command is an admin, and standard error says which. Raises StartRefused."""
    from qim.services.cluster.admin import proved_here

    say(f"{what} without an auditor, by the admin's certificate of SHA-256 {proved_here(settings)}")
