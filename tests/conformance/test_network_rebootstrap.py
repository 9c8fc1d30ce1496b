"""Rows I23 and I27: the metadata client when the brokers it knows are of no use any more."""

import pytest

from tests.fakes.metadata_net import metadata_net

BOOT = "10.9.9.9"
REBOOTSTRAP_REQUIRED = 129


@pytest.mark.row("I27")
def test_when_all_known_brokers_are_dead_the_bootstrap_addresses_tell_new_ones() -> None:
    with metadata_net() as world:
        _ = world.greet()
        world.answer(1, 2)
        before = world.refuse_until(BOOT)
        assert {"10.0.0.1", "10.0.0.2"} <= {*before, *world.net.connects}
        _ = world.greet()
        world.answer(3)
        assert world.net.connects[-1] == "10.0.0.3"
        assert set(world.metadata.cluster.nodes) == {3}


@pytest.mark.row("I27")
def test_without_the_strategy_only_known_brokers_are_tried() -> None:
    with metadata_net(**{"metadata.recovery.strategy": "none"}) as world:
        _ = world.greet()
        world.answer(1, 2)
        with pytest.raises(AssertionError, match="never tried"):
            _ = world.refuse_until(BOOT)


@pytest.mark.row("I27")
def test_brokers_that_never_answer_are_forgotten_for_the_bootstrap_addresses_after_the_trigger() -> None:
    with metadata_net(**{"metadata.recovery.rebootstrap.trigger.ms": 300_000}) as world:
        _ = world.greet()
        world.answer(1, 2)
        begun = world.net.now
        world.metadata.refresh()
        # They accept, greet, and are silent from then on.
        while world.net.now < begun + 360.0:
            if not world.net.last.connected and not world.net.last.closed:
                world.net.last.accept()
                _ = world.net.last.greet()
                world.round()
            world.wait()
        late = world.net.connects[-4:]
        assert late == [BOOT] * 4
        while world.net.last.closed:
            world.wait()
        _ = world.greet()
        world.answer(3)
        assert world.net.connects[-1] == "10.0.0.3"


@pytest.mark.row("I27")
def test_a_broker_may_send_us_back_to_the_bootstrap_addresses_at_once() -> None:
    with metadata_net() as world:
        _ = world.greet()
        world.answer(1, 2)
        _ = world.greet()
        world.metadata.refresh()
        world.round(1.0)
        world.answer(code=REBOOTSTRAP_REQUIRED)
        assert world.net.connects[-1] == BOOT


@pytest.mark.row("I23")
def test_a_broker_without_a_common_version_of_metadata_is_a_failed_update_and_another_is_asked() -> None:
    with metadata_net() as world:
        _ = world.greet()
        world.answer(1, 2)
        _ = world.greet(metadata=(14, 15))
        world.metadata.refresh()
        while world.net.connects[-1] == "10.0.0.1":
            world.wait()
        assert "no version of Metadata" in world.metadata.problems["brokers"]
        assert world.net.connects[-1] == "10.0.0.2"
