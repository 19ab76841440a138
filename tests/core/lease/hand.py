"""A LeaseKeeper in hand: events are fed, orders picked out; nobody answers but the test."""

from collections.abc import Sequence
from typing import TypeVar

from qim.core.lease import LeaseConfig, LeaseEffect, LeaseKeeper
from qim.core.ports.local import LeaseHeld, Started
from qim.core.ports.registry import Acquire, Announce, Granted, Peers, Resource, Role

T = TypeVar("T")
CONFIG = LeaseConfig(owner="writer-1", address="writer-1", roles=((Role.WRITER, 2),))
FIRST = Resource(role=Role.WRITER, number=0)


def keeper(config: LeaseConfig = CONFIG) -> LeaseKeeper:
    made = LeaseKeeper(config, choose=lambda site, key: 0)
    return made


def only(effects: Sequence[LeaseEffect], kind: type[T]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def start(lease_keeper: LeaseKeeper, now: int = 0) -> list[LeaseEffect]:
    effects = lease_keeper.step(now, [Started(address="writer-1", wall=1_000_000)])
    (announce,) = only(effects, Announce)
    return lease_keeper.step(now, [Peers(op=announce.op, role=Role.WRITER, owners=("writer-1",))])


def grant(acquire: Acquire, epoch: int) -> Granted:
    return Granted(
        op=acquire.op, resource=acquire.resource, epoch=epoch, barrier_epoch=0, barrier_offset=-1
    )


def held(now: int = 0, epoch: int = 7) -> LeaseKeeper:
    lease_keeper = keeper()
    acquires = only(start(lease_keeper, now), Acquire)
    effects = lease_keeper.step(now, [grant(acquire, epoch) for acquire in acquires])
    assert len(only(effects, LeaseHeld)) == 2
    return lease_keeper
