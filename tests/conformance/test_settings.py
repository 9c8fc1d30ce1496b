"""Rows H1 to H4: what a producer is told, and what it refuses to be told. Idempotence is never switched off unasked."""

from collections.abc import Mapping

import pytest
from penstock.config.direct import DirectSettings, direct_settings
from penstock.config.errors import ConfigError

INT_MAX = 2**31 - 1


def made(given: Mapping[str, object]) -> DirectSettings:
    return direct_settings({"bootstrap.servers": "localhost:9999", **given})


def problems(given: Mapping[object, object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        direct_settings({"bootstrap.servers": "localhost:9999", **given})  # type: ignore[dict-item]
    return caught.value.problems


UNSET: dict[str, object] = {}
ON: dict[str, object] = {"enable.idempotence": "true"}
OFF: dict[str, object] = {"enable.idempotence": "false"}


@pytest.mark.row("H1")
@pytest.mark.parametrize("asked", [UNSET, ON], ids=["unset", "on"])
@pytest.mark.parametrize(
    ("contrary", "told"),
    [
        ({"acks": "0"}, "acks = 0 does not go with idempotence"),
        ({"acks": "1"}, "acks = 1 does not go with idempotence"),
        ({"retries": "0"}, "retries = 0 does not go with idempotence"),
        ({"max.in.flight.requests.per.connection": "6"}, "max.in.flight.requests.per.connection = 6"),
    ],
)
def test_what_does_not_go_with_idempotence_is_an_error_and_never_switches_it_off(
    asked: dict[str, object], contrary: dict[str, object], told: str
) -> None:
    (found,) = problems({**asked, **contrary})
    assert found.startswith(told)


@pytest.mark.row("H1")
@pytest.mark.parametrize("asked", [UNSET, ON], ids=["unset", "on"])
@pytest.mark.parametrize("acks", ["all", "-1", None])
def test_what_goes_with_idempotence_leaves_it_on(asked: dict[str, object], acks: str | None) -> None:
    given: dict[str, object] = {**asked, "retries": "1", "max.in.flight.requests.per.connection": "5"}
    settings = made(given if acks is None else {**given, "acks": acks})
    assert settings.enable_idempotence
    assert settings.acks == "-1"


@pytest.mark.row("H1")
@pytest.mark.parametrize(("acks", "reads"), [("0", "0"), ("1", "1"), ("all", "-1"), ("-1", "-1")])
def test_who_writes_that_idempotence_is_off_may_choose(acks: str, reads: str) -> None:
    settings = made({**OFF, "acks": acks, "retries": "0"})
    assert not settings.enable_idempotence
    assert (settings.acks, settings.retries) == (reads, 0)


@pytest.mark.row("H1")
def test_more_than_five_in_flight_are_an_error_even_then() -> None:
    (found,) = problems({**OFF, "max.in.flight.requests.per.connection": 6})
    assert found.startswith("max.in.flight.requests.per.connection = 6")


@pytest.mark.row("H1")
@pytest.mark.parametrize("contrary", [{"acks": "0"}, {"retries": "0"}, OFF], ids=["acks", "retries", "off"])
def test_a_transactional_id_goes_with_nothing_that_idempotence_does_not_go_with(contrary: dict[str, object]) -> None:
    assert problems({**contrary, "transactional.id": "payments"}) != []


@pytest.mark.row("H1")
def test_a_transactional_id_without_idempotence_is_an_error_that_names_it() -> None:
    (found,) = problems({**OFF, "transactional.id": "payments"})
    assert found.startswith("transactional.id needs idempotence")


@pytest.mark.row("H2")
def test_a_transactional_producer_is_idempotent_and_named_after_its_id() -> None:
    settings = made({"transactional.id": "payments"})
    assert (settings.enable_idempotence, settings.acks, settings.retries) == (True, "-1", INT_MAX)
    assert settings.client_id == "producer-payments"
    assert made({"transactional.id": "payments", "client.id": "mine"}).client_id == "mine"


def test_no_transactional_id_may_be_said_and_an_empty_one_may_not() -> None:
    assert made({"transactional.id": None}).transactional_id is None
    (found,) = problems({"transactional.id": ""})
    assert found.startswith("transactional.id = ''")


@pytest.mark.row("H2")
def test_an_idempotent_producer_waits_for_all_and_retries_without_being_told() -> None:
    settings = made({"enable.idempotence": "true"})
    assert settings.enable_idempotence
    assert (settings.acks, settings.retries) == ("-1", INT_MAX)
    prefix, number = settings.client_id.split("-")
    assert prefix == "producer"
    assert int(number) >= 1


@pytest.mark.row("H3")
def test_a_delivery_time_out_leaves_room_for_linger_and_one_request() -> None:
    (found,) = problems({"delivery.timeout.ms": 1000, "linger.ms": 1000, "request.timeout.ms": 1})
    assert found == "delivery.timeout.ms = 1000 must be at least linger.ms + request.timeout.ms = 1001"
    settings = made({"delivery.timeout.ms": 1000, "linger.ms": 999, "request.timeout.ms": 1})
    assert settings.delivery_timeout_ms == 1000


@pytest.mark.row("H4")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compression.type", "abc"),
        ("security.protocol", "abc"),
        ("metadata.recovery.strategy", "abc"),
        ("send.buffer.bytes", -2),
        ("receive.buffer.bytes", -2),
    ],
)
def test_a_value_that_means_nothing_is_an_error_by_its_name(name: str, value: object) -> None:
    (found,) = problems({name: value})
    assert found.lower().startswith(f"{name} = {value!r}: ")


@pytest.mark.row("H4")
def test_sizes_of_buffers_may_be_left_to_the_kernel() -> None:
    settings = made({"send.buffer.bytes": -1, "receive.buffer.bytes": -1})
    assert (settings.send_buffer_bytes, settings.receive_buffer_bytes) == (-1, -1)


@pytest.mark.row("H4")
@pytest.mark.parametrize("protocol", ["plaintext", "PlainText", "PLAINTEXT"])
def test_a_protocol_may_be_written_in_any_case(protocol: str) -> None:
    assert made({"security.protocol": protocol}).security_protocol == "PLAINTEXT"


@pytest.mark.row("H4")
@pytest.mark.parametrize("strategy", ["REBOOTSTRAP", "Rebootstrap", "NONE"])
def test_a_recovery_strategy_may_be_written_in_any_case(strategy: str) -> None:
    assert made({"metadata.recovery.strategy": strategy}).metadata_recovery_strategy == strategy.lower()


@pytest.mark.row("H4")
def test_a_name_that_is_no_text_is_an_error() -> None:
    (found,) = problems({1: "not string key"})
    assert found == "1 is not a setting: names are texts"


@pytest.mark.row("H4")
def test_serializers_are_nothing_that_could_be_missing() -> None:
    """Keys and values are bytes: what Kafka's producer cannot do without is refused here."""
    found = problems({"key.serializer": "StringSerializer", "value.serializer": "StringSerializer"})
    assert [item.partition(" ")[0] for item in found] == ["key.serializer", "value.serializer"]
