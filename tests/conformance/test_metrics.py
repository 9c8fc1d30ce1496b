"""Rows about metrics: what is recorded, and at which level."""

import pytest
from penstock.config.direct import DirectSettings, direct_settings
from penstock.config.errors import ConfigError
from penstock.producer.core.metric_names import BY_GROUP, CLIENT, METRICS, PARTITION, Level
from penstock.producer.metrics import Meters

from tests.fakes.link_world import link_world


def settings(**given: object) -> DirectSettings:
    return direct_settings({"bootstrap.servers": "x:1", "client.id": "me", **given})


def figures(meters: Meters, now: float) -> dict[str, float]:
    """Those of the whole client."""
    return {figure.metric.name: figure.value for figure in meters.sensors.figures(now) if figure.metric.group == CLIENT}


@pytest.mark.row("F3")
def test_the_throttle_of_every_answer_counts_that_of_apiversions_too() -> None:
    meters = Meters(settings(), None, now=0.0)
    with link_world(watch=meters) as world:
        world.bench.grant(0)
        world.bench.put(0, 1)
        world.send()
        world.connect(throttle_ms=400)
        world.send(world.net.now + 0.401)
        for offset, throttle_ms in ((1, 100), (2, 200), (3, 300)):
            if offset > 1:
                world.bench.put(0, 1)
                world.send()
            _ = world.answer([0], offset=offset, throttle_ms=throttle_ms)
            world.send(world.net.now + throttle_ms / 1000 + 0.001)
        told = figures(meters, world.net.now)
    assert told["produce-throttle-time-avg"] == 250
    assert told["produce-throttle-time-max"] == 400
    assert (told["request-total"], told["response-total"], told["record-send-total"]) == (4, 4, 3)


@pytest.mark.row("H27")
@pytest.mark.parametrize("level", list(Level), ids=lambda level: level.name)
def test_the_recording_level_is_info_unless_another_is_set(level: Level) -> None:
    assert settings().metrics_recording_level == "INFO"
    meters = Meters(settings(**{"metrics.recording.level": level.name}), None, now=0.0)
    assert meters.sensors.level is level
    meters.sensors.of(PARTITION, "a", "0", now=0.0)
    shown = {figure.metric for figure in meters.sensors.figures(0.0)}
    assert shown >= set(BY_GROUP[CLIENT])
    assert shown & set(BY_GROUP[PARTITION]) == ({*BY_GROUP[PARTITION]} if level else set())


@pytest.mark.row("H27")
def test_no_other_level_is_taken() -> None:
    with pytest.raises(ConfigError, match=r"metrics\.recording\.level"):
        settings(**{"metrics.recording.level": "debug"})


@pytest.mark.row("H27")
@pytest.mark.parametrize("call", ["init", "begin", "send-offsets", "commit", "abort"])
def test_the_time_spent_in_calls_about_transactions_adds_up(call: str) -> None:
    meters = Meters(settings(), None, now=0.0)
    meters.transacted(call, 0.25, 1.0)
    meters.transacted(call, 0.5, 2.0)
    told = figures(meters, 2.0)
    assert told[f"txn-{call}-time-ns-total"] == 0.75e9
    assert {name for name, value in told.items() if value and name.startswith("txn-")} == {f"txn-{call}-time-ns-total"}


def test_authentications_are_counted_by_how_they_ended() -> None:
    meters = Meters(settings(), None, now=0.0)
    traffic = meters.traffic(1, now=0.0)
    traffic.authenticated(1.0)
    traffic.authenticated_again(0.04, 2.0)
    traffic.authenticated_again(0.02, 3.0)
    traffic.refused(4.0, again=False)
    traffic.refused(5.0, again=True)
    told = figures(meters, 6.0)
    assert told["successful-authentication-total"] == told["failed-authentication-total"] == 1
    assert (told["successful-reauthentication-total"], told["failed-reauthentication-total"]) == (2, 1)
    assert (told["reauthentication-latency-avg"], told["reauthentication-latency-max"]) == (30, 40)


def test_no_metric_is_shown_that_is_not_declared() -> None:
    meters = Meters(settings(**{"metrics.recording.level": "DEBUG"}), None, now=0.0)
    assert {figure.metric for figure in meters.sensors.figures(0.0)} <= set(METRICS)
