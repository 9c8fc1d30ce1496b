"""For how long a process sleeps that has something to ask of nodes it cannot reach."""

from tests.fakes.link_world import link_world


def test_a_question_for_a_node_without_a_connection_keeps_nobody_awake() -> None:
    with link_world() as world:
        lease = world.bench.grant(0)
        world.links.tick(world.net.now)
        assert lease.pending_checks
        assert not lease.checks_in_flight
        deadline = world.links.next_deadline(world.net.now)
        assert deadline is not None
        assert deadline > world.net.now


def test_a_question_for_a_throttled_node_is_asked_when_that_is_over() -> None:
    with link_world() as world:
        world.bench.grant(0)
        world.warm([0])
        world.bench.put(0, 1)
        world.send()
        _ = world.answer([0], throttle_ms=2000, offset=2)
        world.bench.grant(1)
        world.links.tick(world.net.now)
        deadline = world.links.next_deadline(world.net.now)
        assert deadline is not None
        assert deadline > world.net.now
