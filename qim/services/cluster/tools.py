"""What an operator mends in a cluster: it opens what the auditor speaks to, and no machine.

It goes to the stores, the log and the registry under the same fences as a machine; leases keep it from what a process owns
(pipeline.md §7). An order that changes something runs in the auditor, by its own connections (orders.py); a dry run, and an
order while no auditor can live, in the command.
"""

import asyncio
from typing import Any

import uvloop

from qim.adapters.reporting import SILENT
from qim.core.audit import AuditReport
from qim.core.ports.log import Topic
from qim.services.cluster.adapters import Open, Opened, Told, open_adapters, open_archive
from qim.services.hosting import Deployment, Hosting
from qim.services.mending import Mender, MendOrder, mended
from qim.services.observation import LogSink, ProcessObserver
from qim.services.roles import ServiceRole
from qim.services.runtime import Runtime
from qim.services.settings import Settings

STDERR = 2
OWNER = "operator"
MENDED_TOPIC = {"bump": Topic.DISPATCH, "outbox": Topic.OUTBOX, "states": Topic.USER_STATE}
"""What is mended may be a topic made anew, whose id the registry must learn, or no process starts over it."""


def mend_cluster(settings: Settings, order: MendOrder) -> dict[str, Any]:
    """Carry an order out here. Raises StartRefused where a server can't be opened."""
    return uvloop.run(carried_out(settings, order))


async def carried_out(
    settings: Settings, order: MendOrder, open_ports: Open = open_adapters
) -> dict[str, Any]:
    """As ``mended`` tells it, over connections of its own: what they find of a topic made anew is of now."""
    loop = asyncio.get_running_loop()
    told = Told(reporting=SILENT, on_reset=lambda _: None)
    opened = await open_ports(settings, ServiceRole.AUDITOR, loop, told)
    try:
        parameters = settings.parameters()
        tiered = parameters.message_store_backend == "tiered"
        if tiered and order.what == "outbox" and opened.ports.archive is None:
            # How far a log must be filled up is the archive's to say too; no other order needs it to be there.
            opened.ports.archive = await open_archive(settings, loop, opened)
        mender = Mender(opened.ports, parameters, tiered=tiered)
        found = await mended(order, mender, lambda: _audit(settings, opened))
        topic = MENDED_TOPIC.get(order.what)
        if order.apply and topic is not None and "refused" not in found:
            identity = opened.topic_ids[topic].hex()
            await opened.registry.replace_shared({f"topic_id_{topic}": identity})
        return found
    finally:
        await opened.close()


async def _audit(settings: Settings, opened: Opened) -> AuditReport:
    loop = asyncio.get_running_loop()
    sink = LogSink(loop, STDERR, as_json=settings.log_format == "json")
    runtime = Runtime(loop, ProcessObserver(sink, _died, stages=False))
    deployment = Deployment(parameters=settings.parameters(), retention=settings.retention())
    hosting = Hosting(loop, runtime, opened.ports, deployment, owner=OWNER, address=OWNER)
    hosting.host_auditor()
    try:
        return await hosting.audit()
    finally:
        runtime.stop()
        sink.close()


def _died(machine: str, error: BaseException) -> None:
    raise AssertionError(f"the {machine} died: {error!r}")
