"""What ends the linger of batches in a producer of one process."""

from tests.conformance.joined_rig import JoinedRig


def test_want_of_memory_at_a_node_ends_the_linger_of_its_batches_only() -> None:
    rig = JoinedRig(leaders={0: 0, 1: 1, 2: 0}, linger_ms=1000, delivery_ms=10_000)
    for partition in (0, 1, 2):
        rig.append(partition)
    assert rig.run() == []
    rig.joined.flush(now=rig.now, nodes=frozenset({0}))
    assert {sent.partition for request in rig.run() for sent in request.sent} == {0, 2}
    rig.joined.flush(now=rig.now)
    assert [sent.partition for request in rig.run() for sent in request.sent] == [1]
