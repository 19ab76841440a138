"""The operator's commands that mend, beside a stopped and a running embedded server; and who may order what."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from qim.adapters.embedded.data_directory import DataDirectory
from qim.cli.main import main
from qim.core.contract.routing import shard as shard_of
from qim.core.ports.log import Topic
from tests.integration.ground import ALICE, BOB, Ground
from tests.integration.served import Served, eventually


def test_the_commands_look_first_and_say_with_their_status_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"

    def told(*words: str) -> tuple[int, Any]:
        status = main([*words, "--data", str(data), "--json"])
        return status, json.loads(capsys.readouterr().out)

    async def talked(ground: Ground) -> None:
        async with ground.serving() as running:
            (ack,) = await running.say(b"one")
            await running.heard(ack.message_id)
            await running.audited()

    def held(case: Callable[[Ground], Any]) -> Any:
        with DataDirectory(data) as directory:
            directory.secret()
            return case(Ground(directory))

    assert main(["shard", "bump", "--data", str(data)]) == 2, "no server was ever there"
    held(lambda ground: asyncio.run(talked(ground)))
    for words in (("deadletter", "list"), ("repair", "dispatch"), ("repair", "outbox")):
        status, report = told(*words)
        assert (status, report["apply"]) == (0, False)
    assert told("shard", "bump")[0] == 0
    assert main(["shard", "bump", "--data", str(data)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4 and all(line.endswith("nothing to do") for line in said)
    held(lambda ground: ground.forget(Topic.DISPATCH))
    lost = {shard_of(ALICE, 4), shard_of(BOB, 4)}
    status, report = told("shard", "bump")
    assert (status, {one["shard"] for one in report["found"] if not one["whole"]}) == (1, lost)
    status, report = told("shard", "bump", "--apply")
    assert (status, {one["shard"] for one in report["found"] if one["applied"]}) == (0, lost)
    assert told("shard", "bump", "--apply")[0] == 0, "nothing is left"
    assert main(["shard", "bump", "--data", str(data)]) == 0
    assert "dispatches again" not in capsys.readouterr().out, "that was the bump before"
    status, report = told("shard", "bump", "--apply", "--shard", str(min(lost)))
    assert status == 1
    assert "nothing is to be mended" in report["refused"]
    assert told("shard", "bump", "--shard", "9")[0] == 2, "no such shard is a wrong question"
    assert told("deadletter", "list", "--partition", "77")[0] == 2
    assert main(["deadletter", "list", "--apply", "--data", str(data)]) == 2
    held(lambda ground: asyncio.run(talked(ground)))


def test_a_running_server_is_asked(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    data = ["--data", str(served.data)]
    assert main(["deadletter", "list", *data]) == 0
    assert main(["repair", "dispatch", *data]) == 0
    assert "nothing found" in capsys.readouterr().out
    assert main(["shard", "bump", "--shard", "0", "--apply", *data]) == 1
    assert "is held by" in capsys.readouterr().out
    address = f"http://{served.ready['metrics']}/mend"
    key = {"Authorization": f"Bearer {DataDirectory(served.data).operator_key()}"}
    json_kind = {"Content-Type": "application/json"}
    for headers, body in ((key, b"{}"), (key | json_kind, b'{"what": "all"}')):
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(address, data=body, headers=headers, method="POST"), timeout=30)
        assert refused.value.code == 400
        refused.value.close()


def test_whoever_cannot_read_the_data_orders_nothing(tmp_path: Path) -> None:
    """Another user of the machine reaches the port, not the key: that is in a file for its owner alone, and new each run."""
    served = Served(tmp_path / "data")
    key_file = DataDirectory(served.data).operator_key_file
    json_kind = {"Content-Type": "application/json"}
    try:
        served.start()
        assert key_file.stat().st_mode & 0o777 == 0o600
        first = key_file.read_text().strip()
        for path, key in (("/mend", ""), ("/mend", "Bearer 0"), ("/audit", "")):
            headers = json_kind | ({"Authorization": key} if key else {})
            body = b'{"what": "bump", "apply": true}'
            address = f"http://{served.ready['metrics']}{path}"
            with pytest.raises(HTTPError) as refused:
                urlopen(Request(address, data=body, headers=headers, method="POST"), timeout=30)
            with refused.value:
                assert refused.value.code == 401
                told = json.loads(refused.value.read())
            assert told["code"] == ("order_key_wrong" if key else "order_key_missing")
        asyncio.run(eventually(lambda: served.log().count("order refused") == 3))
        assert first not in served.log()
        assert served.stop() == 0
        assert not key_file.exists()
        served.start()
        assert key_file.read_text().strip() != first
        assert main(["repair", "dispatch", "--data", str(served.data)]) == 0
        served.end()
    finally:
        served.close()


def test_topic_names_are_those_of_the_files() -> None:
    assert (Topic.OUTBOX.value, Topic.DISPATCH.value) == ("outbox", "dispatch")
