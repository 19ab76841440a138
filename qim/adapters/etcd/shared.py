"""The numbers that every process must share: one JSON object in etcd, written by whoever starts first (contract.md, Routing)."""

from typing import Any, Final

import msgspec

from qim.adapters.etcd import calls
from qim.adapters.etcd.connection import EtcdConnection, NotApplied, Unanswered
from qim.adapters.etcd.keys import Keys
from qim.adapters.start_refused import StartRefused
from qim.core.ports.completion import FailReason

LOOK: Final = "qim config share  # names each number that differs"


class SharedNumbers:
    """One start-up's comparison."""

    def __init__(self, connection: EtcdConnection, keys: Keys, endpoints: tuple[str, ...]) -> None:
        self._connection = connection
        self._keys = keys
        self._endpoints = endpoints

    async def fix(self, numbers: dict[str, str], commands: dict[str, str], within: float) -> None:
        """Nothing is written where anything differs; names that were not stored yet are added. Raises StartRefused."""
        try:
            while True:
                stored, revision = await self._stored(within)
                self._refuse_differences(stored, numbers, commands)
                if numbers.keys() <= stored.keys():
                    return
                if await self._written(stored | numbers, revision, within):
                    return
        except Unanswered as error:
            raise self._unreachable(str(error)) from error
        except NotApplied as error:
            if error.why is FailReason.UNAUTHORISED:
                raise self._unauthorised(str(error)) from error
            raise self._unreachable(str(error)) from error

    async def read(self, within: float) -> dict[str, str]:
        """As they stand; empty before the first start. Raises StartRefused."""
        try:
            return (await self._stored(within))[0]
        except (Unanswered, NotApplied) as error:
            raise self._unreachable(str(error)) from error

    async def replace(self, numbers: dict[str, str], within: float) -> None:
        """An operator's word: these numbers are others from now on. Raises StartRefused."""
        try:
            while True:
                stored, revision = await self._stored(within)
                if await self._written(stored | numbers, revision, within):
                    return
        except (Unanswered, NotApplied) as error:
            raise self._unreachable(str(error)) from error

    async def _stored(self, within: float) -> tuple[dict[str, str], int]:
        read = calls.transaction((), (calls.read(self._keys.shared),))
        kvs = calls.found(await self._connection.ask(calls.TXN, read, within), 0)
        if not kvs:
            return {}, 0
        try:
            return msgspec.json.decode(kvs[0].value, type=dict[str, str]), kvs[0].mod_revision
        except msgspec.MsgspecError as error:
            raise StartRefused(
                "shared_parameters_unreadable",
                f"etcd key {self._keys.shared.decode()}",
                got=repr(bytes(kvs[0].value[:80])),
                expected="a JSON object of strings",
                command=self._etcdctl(f"get {self._keys.shared.decode()}"),
            ) from error

    async def _written(self, numbers: dict[str, str], revision: int, within: float) -> bool:
        value = msgspec.json.encode(numbers, order="sorted")
        change = calls.transaction(
            (calls.unchanged(self._keys.shared, revision),),
            (calls.put(self._keys.shared, value),),
        )
        answer: Any = await self._connection.change(calls.TXN, change, within)
        return bool(answer.succeeded)

    def _refuse_differences(
        self, stored: dict[str, str], numbers: dict[str, str], commands: dict[str, str]
    ) -> None:
        different = [name for name in numbers if stored.get(name, numbers[name]) != numbers[name]]
        if not different:
            return
        # A number that another process wrote since the commands were made: how it is told is not known here.
        remedies = [commands.get(name, LOOK) for name in different]
        raise StartRefused(
            "shared_parameters_differ",
            "of the parameters that all processes share " + ", ".join(different),
            got=", ".join(f"{name}={numbers[name]}" for name in different),
            expected=", ".join(f"{name}={stored[name]}" for name in different)
            + f" (fixed at first start in etcd under {self._keys.shared.decode()})",
            command="; ".join(filter(None, dict.fromkeys(remedies))),
        )

    def _unreachable(self, detail: str) -> StartRefused:
        return StartRefused(
            "etcd_unreachable",
            f"etcd at {', '.join(self._endpoints)}",
            got=detail,
            expected="an answer about the parameters that all processes share",
            command=self._etcdctl("endpoint health"),
        )

    def _unauthorised(self, detail: str) -> StartRefused:
        prefix = self._keys.prefix.decode()
        return StartRefused(
            "etcd_unauthorised",
            f"the etcd user's right to {prefix}",
            got=detail,
            expected="reading and writing",
            command=self._etcdctl(f"role grant-permission ROLE readwrite {prefix} --prefix"),
        )

    def _etcdctl(self, what: str) -> str:
        return f"etcdctl --endpoints={','.join(self._endpoints)} {what}"
