"""`qim prewarm` on the private store of a running server: keys come and go, messages stay."""

import json

from tests.integration.served import Served
from tests.integration.up_process import run_qim


def prewarm(served: Served, *options: str) -> dict[str, int]:
    told: dict[str, int] = json.loads(
        run_qim("prewarm", "--data", str(served.data), "--json", *options)
    )
    return told


def test_fill_and_clear(served: Served) -> None:
    send = ("send", "--data", str(served.data), "--user", "1", "--to", "2", "before")
    run_qim(*send)
    filled = prewarm(served, "--keys", "5000")
    assert filled["after"] >= 5_000 > filled["before"]
    assert filled["changed"] == 5_000 - filled["before"]
    again = prewarm(served, "--keys", "5000")
    assert again["changed"] == 0, "as large as it should be already"
    more = prewarm(served, "--keys", "8000")
    assert more["after"] >= 8_000, "what is there already is not counted twice"
    run_qim(*send[:-1], "while it is large")
    cleared = prewarm(served, "--clear")
    assert cleared["changed"] >= filled["changed"] + more["changed"]
    pulled = run_qim("pull", "--data", str(served.data), "--user", "2")
    assert pulled.count("before") == pulled.count("while it is large") == 1


def test_no_server_is_told(tmp_path: object) -> None:
    run_qim("prewarm", "--data", str(tmp_path), "--json", expect=2)
    run_qim("prewarm", "--redis", "127.0.0.1:1", "--json", expect=3)
