"""One thing spoilt about a message that was whole, and what an audit finds then."""

from msgspec.structs import replace

from qim.core.audit import AuditReport, Orphan, OrphanKind, Verdict
from qim.core.contract.entities import FanoutAuditReceipt, GroupDispatch, encode_receipt
from tests.core.audit.toy import Sent, Toy

GARBAGE = b"\x01\x07garbage"


def orphans(report: AuditReport) -> list[tuple[OrphanKind, int, int, int]]:
    """(kind, partition, offset, shard) of each finding."""
    assert report.verdict is Verdict.ORPHANS
    assert report.orphans_total == len(report.orphans)
    return [(one.kind, one.partition, one.offset, one.shard) for one in report.orphans]


def only(report: AuditReport) -> Orphan:
    assert report.verdict is Verdict.ORPHANS
    (one,) = report.orphans
    return one


def receipt(toy: Toy, sent: Sent, **changes: object) -> None:
    """Another receipt stands there."""
    changed: FanoutAuditReceipt = replace(sent.receipt, **changes)
    toy.sources[sent.partition].receipts[sent.offset] = encode_receipt(changed)


def moved(toy: Toy, sent: Sent, of_shard: int, **changes: object) -> None:
    """The receipt names another place in one shard."""
    places = tuple(
        replace(at, **changes) if at.shard == of_shard else at for at in sent.receipt.shards
    )
    receipt(toy, sent, shards=places)


def spoiled(toy: Toy, sent: Sent, shard: int, **changes: object) -> None:
    """Another dispatch stands where the receipt points."""
    other = Toy()
    changed: GroupDispatch = replace(sent.dispatches[shard], **changes)
    other.append_dispatch(shard, changed)
    toy.dispatch(shard).spoil(sent.place(shard), other.dispatch(shard).values[0][1])
