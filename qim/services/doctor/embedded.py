"""An embedded server: asked where it runs, its parts opened where it doesn't."""

from pathlib import Path

from qim.services.doctor import processes, shards
from qim.services.doctor.findings import Finding, ok, warn
from qim.services.doctor.halted import halted
from qim.services.embedded import EmbeddedServer
from qim.services.up import beside_stopped


def running(metrics: str) -> list[Finding]:
    """What it says of itself."""
    return [*processes.examined("up", metrics)]


def stopped(data: Path) -> list[Finding]:
    """Store, logs and registry opened, positions compared with the logs by digest. Raises what a start raises."""

    async def look(server: EmbeddedServer) -> list[Finding]:
        return [*await halted(server.mender), *await shards.wholeness(server.mender)]

    found = [
        warn("up", f"no server runs on {data}", f"qim up --data {data}", "shards-not-serving"),
        *beside_stopped(data, look),
    ]
    return [*found, ok("data directory", "store, logs and registry can be opened")]
