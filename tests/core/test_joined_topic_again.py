"""A topic that is deleted and made again while a batch is on its way: nobody is told more than is known."""

import pytest
from penstock.producer.delivery.in_process import DeliveryFailure
from penstock.producer.delivery.outcomes import DeliveryFailureKind

from tests.conformance.joined_rig import JoinedRig


@pytest.fixture
def rig() -> JoinedRig:
    """One batch was sent without an answer, one record waits behind it, and the topic has another id by now."""
    made = JoinedRig(delivery_ms=10_000)
    _ = made.append(0)
    _ = made.run()
    assert len(made.on_wire(0)) == 1
    made.lose(0)
    _ = made.append(0)
    made.topic_id = bytes(16 * [9])
    made.metadata()
    return made


def test_what_was_sent_to_the_old_one_expires_as_perhaps_written(rig: JoinedRig) -> None:
    rig.pass_ms(10_001)
    _ = rig.run()
    assert [failure.kind for failure in rig.failed(0).values()] == [
        DeliveryFailureKind.MAY_BE_WRITTEN,
        DeliveryFailureKind.EXPIRED,
    ]


def test_a_forced_close_tells_the_same(rig: JoinedRig) -> None:
    rig.joined.abort(DeliveryFailure(DeliveryFailureKind.CLOSED, -1, "CLOSED", "closed"), now=rig.now)
    _ = rig.run()
    assert [failure.kind for failure in rig.failed(0).values()] == [
        DeliveryFailureKind.MAY_BE_WRITTEN,
        DeliveryFailureKind.CLOSED,
    ]
