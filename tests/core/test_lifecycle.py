"""The router's phases: drain for so long, call back, end."""

import pytest
from penstock.daemon.router.lifecycle import PHASE_TRANSITIONS, REVOKE_S, Lifecycle, RouterPhase


def running(drain_s: float = 30.0) -> Lifecycle:
    life = Lifecycle(drain_s)
    life.recovered()
    return life


def test_a_stop_ends_the_drain_when_nothing_is_pending() -> None:
    life = running()
    assert life.stop(now=10.0, drain=True)
    assert life.step(now=10.1, pending=5, held=2) is RouterPhase.DRAINING
    assert life.step(now=11.0, pending=0, held=2) is RouterPhase.REVOKING
    assert life.step(now=11.1, pending=0, held=1) is RouterPhase.REVOKING
    assert life.step(now=11.2, pending=0, held=0) is RouterPhase.ENDED


def test_the_drain_and_the_calling_back_have_limits() -> None:
    life = running(drain_s=5.0)
    life.stop(now=10.0, drain=True)
    assert life.next_deadline() == 15.0
    assert life.step(now=14.9, pending=5, held=2) is RouterPhase.DRAINING
    assert life.step(now=15.0, pending=5, held=2) is RouterPhase.REVOKING
    assert life.next_deadline() == 15.0 + REVOKE_S
    assert life.step(now=15.0 + REVOKE_S, pending=5, held=2) is RouterPhase.ENDED
    assert life.next_deadline() is None


def test_a_second_stop_changes_nothing_unless_it_is_impatient() -> None:
    life = running()
    assert life.stop(now=10.0, drain=True)
    assert not life.stop(now=11.0, drain=True)
    assert life.next_deadline() == 40.0
    assert not life.stop(now=12.0, drain=False)
    assert life.step(now=12.0, pending=9, held=1) is RouterPhase.REVOKING


def test_running_goes_on_while_nobody_stops_it() -> None:
    life = running()
    assert life.step(now=1e9, pending=0, held=0) is RouterPhase.RUNNING
    assert life.next_deadline() is None


def test_every_phase_has_its_row_and_nothing_leads_back() -> None:
    assert PHASE_TRANSITIONS.keys() == set(RouterPhase)
    order = list(RouterPhase)
    assert all(order.index(after) > order.index(before) for before, row in PHASE_TRANSITIONS.items() for after in row)
    with pytest.raises(AssertionError):
        running().move(RouterPhase.ENDED)
