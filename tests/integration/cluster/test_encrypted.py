"""The same cluster with mTLS between its processes and TLS 1.3 for clients; certificates read again under load."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qim.client import Client, NotConnected
from tests.adapters.store.test_tls import chain
from tests.integration.cluster.cluster import Cluster
from tests.integration.cluster.commands import commanded
from tests.integration.cluster.conftest import drained
from tests.integration.cluster.role_process import RoleProcess
from tests.integration.load import Load
from tests.integration.raw_client import token
from tests.integration.served import eventually
from tests.integration.testbed.redis import RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("encrypted"), encrypted=True) as running:
        yield running
        drained(running)


def test_users_under_load_and_certificates_read_again(
    encrypted: Cluster, stores: Path, first_user: int
) -> None:
    async def main() -> None:
        load = Load(encrypted, stores, first_user)
        async with load.running() as running:
            await running.acks(50)
            talkers = encrypted.roles("gateway", "writer", "mailbox", "session")
            for process in talkers:
                os.kill(process.pid, signal.SIGHUP)
            for process in talkers:
                await eventually(lambda process=process: "reloaded" in process.log())
            await running.every_lane()
        await load.check()

    asyncio.run(main())


def test_a_client_that_speaks_plaintext_is_not_served(encrypted: Cluster, stores: Path) -> None:
    async def main() -> None:
        plain = Client(
            user_id=1,
            access_token=token(encrypted.target.secret, 1),
            addresses=encrypted.addresses,
            store_path=stores / "plain.db",
            device_id=b"plain",
        )
        async with plain:
            with pytest.raises(NotConnected):
                await plain.online(2.0)

    asyncio.run(main())


@pytest.mark.slow
def test_what_changes_the_cluster_is_done_for_an_admin_alone(encrypted: Cluster) -> None:
    """A mailbox shard begun anew: refused to every process's certificate, done for the admin's, by the auditor."""
    (auditor,) = encrypted.roles("auditor")
    owners = encrypted.roles("mailbox", "session")
    words = ("shard", "bump", "--shard", "0", "--force")
    for process in owners:
        assert process.stop() == 0
    for role in ("gateway", "mailbox", "auditor"):
        refused = commanded(encrypted.operator(role), *words, "--apply")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "[admin_wrong_role]" in refused.stderr, refused.stderr
        shown = encrypted.chain.fingerprints[role]
        asyncio.run(eventually(lambda shown=shown: shown in auditor.log()))
    nobody = commanded(encrypted.settings(), *words, "--apply")
    assert (nobody.returncode, "[admin_certificate_missing]" in nobody.stderr) == (2, True)

    def epoch() -> int:
        looked = commanded(encrypted.settings(), "shard", "bump", "--shard", "0")
        (found,) = json.loads(looked.stdout)["found"]
        return int(found["shard_epoch"])

    assert epoch() == 1, "nothing was changed; a dry run needs no admin"
    done = commanded(encrypted.operator("admin"), *words, "--apply")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["found"]
    assert (found["applied"], found["new_shard_epoch"], epoch()) == (True, 2, 2)

    def ends() -> list[dict[str, Any]]:
        done = [one for one in auditor.log_records() if one["event"] == "admin order done"]
        return [one for one in done if one["what"] == "bump"]

    asyncio.run(eventually(lambda: bool(ends())))
    (told,) = ends()
    assert (told["shard"], told["force"]) == (0, True)
    assert told["certificate_sha256"] == encrypted.chain.fingerprints["admin"]
    encrypted.start_processes(owners)
    audited = commanded(encrypted.operator("admin"), "audit")
    assert audited.returncode in (0, 4), audited.stderr
    assert auditor.get("/audit")[0] == 404


def told(process: RoleProcess) -> list[tuple[str, str]]:
    """(event, whose certificates) of its log."""
    return [(one["event"], one.get("tls", "")) for one in process.log_records()]


def test_certificates_towards_a_server_are_read_again_too(
    encrypted: Cluster, tmp_path: Path
) -> None:
    """On SIGHUP; where the new one is bad it is told by name, and what stands goes on."""
    store = RedisServer(tmp_path / "store", tls=chain(tmp_path / "files"))
    store.start()
    try:
        process = encrypted.add("gateway", 9, QIM_MAILBOX_REDIS_ADDR=store.address)
        process.launch()
        process.wait_ready()
        certificate = tmp_path / "files" / "client_certificate.pem"
        kept = certificate.read_bytes()

        async def read_again(text: bytes, event: str) -> None:
            certificate.write_bytes(text)
            os.kill(process.pid, signal.SIGHUP)
            await eventually(lambda: (event, "redis mailbox") in told(process))

        asyncio.run(read_again(b"none", "certificates not reloaded, the old ones stay"))
        asyncio.run(read_again(kept, "certificate reloaded"))
        assert process.alive
        assert process.stop() == 0
    finally:
        del encrypted.processes["gateway-9"]
        store.kill()
