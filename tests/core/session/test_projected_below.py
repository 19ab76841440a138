"""How far the dispatch log is in the lists: what retention of that log may rely on."""

from qim.core.contract import routing
from qim.core.ports.local import LeaseGone
from qim.core.ports.registry import Resource, Role
from tests.core.session.scene import EVERYONE, Scene
from tests.core.session.spoken import SHARDS
from tests.core.session.toy_writer import conversation


def test_only_what_is_stored_counts_and_only_while_the_shard_runs() -> None:
    scene = Scene()
    shard = routing.shard(1, SHARDS)
    assert scene.machine.projected_below(shard) is None, "not open yet"
    scene.run()
    assert scene.machine.projected_below(shard) == 0
    name = scene.group(1, EVERYONE)
    scene.say(name, 2)
    scene.run()
    assert scene.machine.projected_below(shard) == 1
    scene.missing_versions[scene.group(2, EVERYONE)] = None
    scene.say(conversation(2), 2)
    scene.run(500)
    assert scene.machine.projected_below(shard) == 1, "fetched, and waits for its version"
    resource = Resource(role=Role.SESSION, number=shard)
    scene.feed(LeaseGone(resource=resource))
    assert scene.machine.projected_below(shard) is None
    assert scene.machine.projected_below(SHARDS) is None
