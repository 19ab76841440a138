"""Client and ConnectionNode back to back over real wire bytes."""

from qim.core.client.vocabulary import ClientState, MessageApplied, SendSettled
from tests.core.client.toy_world import ToyWorld


def test_calm_world_one_message() -> None:
    world = ToyWorld()
    ann, bob = world.client(1), world.client(2)
    ann.online()
    bob.online()
    world.run()
    assert ann.machine._context.state is ClientState.ONLINE
    key = ann.send(7, peer=2, body=b"hi bob")
    world.run()
    (settled,) = ann.told(SendSettled)
    assert settled.client_message_id == key
    assert settled.coordinates is not None
    assert bob.bodies() == [b"hi bob"]
    world.advance(2_000)
    assert ann.bodies() == [b"hi bob"]
    assert bob.store.covered == ann.store.covered == world.services.watermark
    assert len(bob.told(MessageApplied)) == 1
