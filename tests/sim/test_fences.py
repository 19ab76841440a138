"""Every request that a machine sends under an epoch is judged by the fences checker: one that isn't could pass below the fence."""

from typing import get_args

from qim.core.ports.store_operator import OperatorMailboxRequest, OperatorMessageRequest
from qim.sim.checkers.fences import FENCED, OPENS
from qim.sim.sites import STORE


def test_no_request_of_a_machine_is_left_out() -> None:
    operators = get_args(OperatorMessageRequest | OperatorMailboxRequest)
    under_an_epoch = {kind for kind in STORE if "epoch" in kind.__annotations__}
    assert under_an_epoch - {*operators} == {*FENCED, *OPENS}
