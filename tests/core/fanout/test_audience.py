"""Who gets a message: explicit recipients, a single chat's two users, or the members whose interval holds the seq."""

from hypothesis import given
from hypothesis import strategies as st

from qim.core.audience import (
    VersionAudience,
    audience_by_shard,
    named_version,
    recipients_in_shard,
    sees,
)
from qim.core.contract import routing
from qim.core.contract.entities import Interval, Member, MembershipVersion
from qim.core.contract.sequences import U64_MAX
from qim.core.dispatch_digest import body_digest, materialisation_digest
from tests.core.fanout.bench import record, replace, version
from tests.core.mailbox.bench import dispatch

INTERVALS = st.lists(
    st.tuples(st.integers(0, 20), st.one_of(st.integers(0, 20), st.just(U64_MAX))), max_size=3
)


def versioned(intervals: list[list[tuple[int, int]]]) -> MembershipVersion:
    members = tuple(
        Member(user, tuple(Interval(*pair) for pair in pairs))
        for user, pairs in enumerate(intervals, start=1)
    )
    return MembershipVersion(
        conversation_id=b"g" * 16, version=1, digest=b"d" * 16, control_seq=1, members=members
    )


@given(st.lists(INTERVALS, max_size=12), st.integers(0, 25))
def test_the_members_whose_interval_holds_the_seq_and_nobody_else(
    intervals: list[list[tuple[int, int]]], seq: int
) -> None:
    named = versioned(intervals)
    audience = VersionAudience(named, 4)
    found = [user for shard in range(4) for user in audience.users(shard, seq)]
    assert sorted(found) == [member.user_id for member in named.members if sees(member, seq)]
    assert all(routing.shard(user, 4) == s for s in range(4) for user in audience.users(s, seq))


def test_an_interval_holds_what_comes_after_joining_up_to_leaving() -> None:
    member = Member(1, (Interval(4, 9), Interval(20, U64_MAX)))
    assert [seq for seq in range(30) if sees(member, seq)] == [*range(5, 10), *range(21, 30)]


def test_a_record_names_its_version_only_where_it_names_no_recipients() -> None:
    named = version(3, (1, 2))
    assert named_version(record(0)) is None
    assert named_version(record(0, named=named)) == (b"g" * 16, 3, named.digest)
    assert named_version(record(0, named=named, recipients=(5,))) is None


def test_shards_without_recipients_get_nothing() -> None:
    named = versioned([[(0, 5)], [(0, U64_MAX)]])
    audience = VersionAudience(named, 1024)
    item = replace(record(0, named=named), conversation_seq=9)
    assert audience_by_shard(item, audience, 1024) == ((routing.shard(2, 1024), (2,)),)


def test_fanout_and_mailbox_agree() -> None:
    named = version(3, tuple(range(1, 300)))
    audience = VersionAudience(named, 4)
    item = replace(record(0, named=named), conversation_seq=100)
    for shard, users in audience_by_shard(item, audience, 4):
        sent = dispatch(0, named=named, shard=shard)
        assert recipients_in_shard(sent, audience, 4) == users


def test_an_explicit_recipient_of_another_shard_has_no_mailbox_here() -> None:
    users = tuple(user for user in range(1, 50) if routing.shard(user, 4) == 2)
    assert recipients_in_shard(dispatch(0, users=(*range(1, 50),), shard=2), None, 4) == users


def test_the_digest_covers_what_is_delivered_and_nothing_else() -> None:
    item = dispatch(0, users=(1, 2))
    same = replace(
        item,
        trace_id=99,
        source_offset=7,
        source_epoch=8,
        source_checkpoint=9,
        source_partition=3,
        inline_body=None,
    )
    assert materialisation_digest(same) == materialisation_digest(item)
    named = dispatch(0, named=version(3, (1, 2)))
    others = [
        replace(item, message_id=b"m" * 16),
        replace(item, conversation_id=b"x" * 16),
        replace(item, conversation_seq=5),
        replace(item, kind=3),
        replace(item, sender_id=2),
        replace(item, recipients=(1,)),
        replace(item, recipients=(1, 2, 3)),
        replace(item, body_digest=body_digest(b"other")),
        named,
        replace(named, version=4),
        replace(named, membership_digest=b"o" * 16),
    ]
    digests = [materialisation_digest(other) for other in (item, *others)]
    assert len(set(digests)) == len(digests)
