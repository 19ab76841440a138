"""CPU of a message between two processes: both networks in one event loop, so every figure has both ends in it.

    python bench/rpc.py [--messages 40000] [--rounds 5] [--batches 1 10 200] [--body 100] [--json FILE]

A gateway keeps ``batch`` questions in flight at a writer, which answers each with ``body`` bytes: plaintext, and mTLS with
a chain made for the run. ``batch`` 1 is a ping-pong, where every message pays for its own write, read and turn of the loop.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop
from _processes import machine, median_of

from qim.adapters.rpc import ProcessRole, RpcNetwork, RpcSecurity
from qim.adapters.tls.dev_chain import DevChain, write_dev_chain
from qim.adapters.tls.internal import InternalTls
from qim.adapters.tls.internal_settings import InternalTlsSettings
from qim.core.contract.actor import Actor
from qim.core.contract.rpc import AskHistory, HistoryAnswer
from qim.core.ports.network import Received, Send

ACTOR = Actor(tenant_id="default", user_id=7, device_id=b"device")
CONVERSATION = bytes(range(16))


def security(chain: DevChain | None, role: ProcessRole) -> RpcSecurity | None:
    """mTLS of this role, or plaintext."""
    if chain is None:
        return None
    settings = InternalTlsSettings.from_environment(chain.environment[role.value])
    assert settings is not None
    return InternalTls(settings, role)


class Round:
    """One pair of networks and its questions."""

    def __init__(self, chain: DevChain | None, body: int) -> None:
        self._body = bytes(body)
        self._answered = 0
        self._wanted = 0
        self._done = asyncio.Event()
        listen = ("127.0.0.1", 0)
        writer, gateway = ProcessRole.WRITER, ProcessRole.GATEWAY
        self.writer = RpcNetwork(listen, writer, self._ask, security=security(chain, writer))
        self.gateway = RpcNetwork(listen, gateway, self._hear, security=security(chain, gateway))

    def _ask(self, event: Received) -> None:
        assert isinstance(event.message, AskHistory)
        answer = HistoryAnswer(
            rid=event.message.rid,
            conversation_id=CONVERSATION,
            records=(self._body,),
            has_more=False,
        )
        self.writer.send(Send(address=event.source, message=answer))

    def _hear(self, event: Received) -> None:
        self._answered += 1
        if self._answered == self._wanted:
            self._done.set()

    async def exchange(self, batch: int) -> None:
        """So many questions at once, and all their answers."""
        self._done.clear()
        self._wanted += batch
        for rid in range(batch):
            question = AskHistory(
                rid=rid,
                actor=ACTOR,
                conversation_id=CONVERSATION,
                anchor=0,
                direction=0,
                limit=100,
            )
            self.gateway.send(Send(address=self.writer.address, message=question))
        await self._done.wait()


async def measured(
    chain: DevChain | None, messages: int, batch: int, body: int
) -> dict[str, float]:
    """Messages a second and µs of CPU a message, answers counted too."""
    one = Round(chain, body)
    await one.writer.start()
    await one.gateway.start()
    await one.exchange(batch)
    began, cpu = time.perf_counter(), time.process_time()
    turns = max(messages // (2 * batch), 1)
    for _ in range(turns):
        await one.exchange(batch)
    used, took = time.process_time() - cpu, time.perf_counter() - began
    await one.gateway.close()
    await one.writer.close()
    count = 2 * batch * turns
    return {"per_s": count / took, "us_cpu": used / count * 1e6}


def main() -> None:
    """Rounds in turn, medians, a table and one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 10, 200])
    parser.add_argument("--body", type=int, default=100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "body_bytes": args.body, "figures": []}
    with tempfile.TemporaryDirectory() as folder:
        chain = write_dev_chain(Path(folder) / "certs", days=1)
        for batch in args.batches:
            rounds: dict[str, list[dict[str, Any]]] = {"plaintext": [], "mTLS": []}
            for _ in range(args.rounds):
                for name, found in rounds.items():
                    secured = None if name == "plaintext" else chain
                    work = measured(secured, args.messages, batch, args.body)
                    found.append(uvloop.run(work))
            for name, found in rounds.items():
                report["figures"].append({"wire": name, "batch": batch, **median_of(found)})
    print(f"{'wire':>10} {'batch':>6} {'messages/s':>11} {'µs CPU a message':>17}")
    for one in report["figures"]:
        print(f"{one['wire']:>10} {one['batch']:>6} {one['per_s']:>11,.0f} {one['us_cpu']:>17.1f}")
    text = json.dumps(report)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
