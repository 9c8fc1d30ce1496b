"""Rows about serializers, interceptors and partitioners of the application's: what they see, who else notices when they fail, their end."""

import logging
from collections.abc import Mapping
from typing import Any, NoReturn

import pytest
from penstock.api.errors import (
    BrokerError,
    ClosedError,
    InvalidTopicError,
    MetadataTimeoutError,
    PenstockError,
    RecordTooLargeError,
    SerializationError,
)
from penstock.api.interceptors import Interceptor
from penstock.api.metadata import RecordMetadata
from penstock.api.records import Headers, Record
from penstock.producer import DirectProducer
from penstock.producer.delivery.outcomes import DeliveryFailureKind
from penstock.producer.direct.environment import Environment

from tests.fakes.front_world import NOW_MS, TOPIC, FrontWorld


class Appending(Interceptor):
    """Appends its name to values; counts, and fails when it is told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fails: set[str] = set()
        self.calls: list[Any] = []
        self.settings: Mapping[str, object] = {}

    def _fail(self, call: str) -> None:
        if call in self.fails:
            raise ValueError(call)

    def configure(self, settings: Mapping[str, object], /) -> None:
        self.settings = settings
        self._fail("configure")

    def on_send(self, record: Record, /) -> Record:
        self.calls.append(("send", record.value))
        self._fail("on_send")
        assert isinstance(record.value, str)
        return record._replace(value=record.value + self.name)

    def on_ack(self, metadata: RecordMetadata, error: BaseException | None, headers: Headers, /) -> None:
        self.calls.append(("ack", metadata, error))
        self._fail("on_ack")

    def on_send_error(self, metadata: RecordMetadata, error: BaseException, headers: Headers, /) -> None:
        self.calls.append(("error", metadata, error))
        self._fail("on_send_error")

    def close(self) -> None:
        self.calls.append("close")
        self._fail("close")

    def ends(self) -> list[Any]:
        return [call[1:] for call in self.calls if call[0] in ("ack", "error")]


def world_of(*interceptors: object, partitions: int = 1, **settings: object) -> FrontWorld:
    return FrontWorld(partitions, plugins={"interceptors": interceptors, "value_serializer": "text"}, **settings)


def values_of(world: FrontWorld) -> list[bytes]:
    """What was sent, as bytes somewhere in the chunks."""
    return [bytes(world._front.arena.read(one.segment, 48, one.length - 48)) for one in world.take()]  # type: ignore[arg-type]


@pytest.mark.row("H28")
def test_each_interceptor_gets_what_the_last_one_made_that_did_not_fail(caplog: pytest.LogCaptureFixture) -> None:
    one, two = Appending("One"), Appending("Two")
    world = world_of(one, two)
    for fails, expected in (((), b"vOneTwo"), ((one,), b"vTwo"), ((two,), b"vOne"), ((one, two), b"v")):
        for interceptor in (one, two):
            interceptor.fails = {"on_send"} if interceptor in fails else set()
        _ = world.send(TOPIC, "v")
        (row,) = values_of(world)
        assert row.endswith(bytes([2 * len(expected)]) + expected + b"\x00")
    assert [call[1] for call in two.calls] == ["vOne", "v", "vOne", "v"]
    failures = [record.getMessage() for record in caplog.records]
    assert failures == ["plugin_failed plugin=Appending call=on_send"] * 4


@pytest.mark.row("H28")
def test_an_end_is_told_to_every_interceptor_in_order_and_then_to_the_callback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    order: list[str] = []

    class Noting(Appending):
        def on_ack(self, metadata: RecordMetadata, error: BaseException | None, headers: Headers, /) -> None:
            order.append(self.name)
            super().on_ack(metadata, error, headers)

    one, two = Noting("One"), Noting("Two")
    world = world_of(one, two)
    counts: list[int] = []
    for fails in ((), ("on_ack",), ("on_ack", "on_send_error")):
        one.fails = two.fails = set(fails)
        future = world.send(TOPIC, "v", on_ack=lambda _metadata, _error: order.append("callback"))
        assert len(order) == 3 * len(counts)
        world.deliver(100)
        counts.append(len(one.ends()) + len(two.ends()))
        assert future.result(0).offset == one.ends()[-1][0].offset
    assert counts == [2, 4, 6]
    assert order == ["One", "Two", "callback"] * 3
    assert [call for call in caplog.messages if "callback_failed" in call] == []
    assert (
        one.ends()[-1]
        == two.ends()[-1]
        == (RecordMetadata(TOPIC, 0, 102, NOW_MS, "delivered", single_replica=False), None)
    )


@pytest.mark.row("H28")
def test_a_failure_is_told_with_the_topic_and_the_partition_as_far_as_they_are_known() -> None:
    one = Appending("One")
    world = world_of(one, partitions=3, max_block_ms=0)
    first = world.send(TOPIC, "v", partition=0)
    _ = world.take()
    world.fail(DeliveryFailureKind.REFUSED, code=10, name="MESSAGE_TOO_LARGE")
    unknown = world.send("elsewhere", "v")
    numbered = world.send("elsewhere", "v", partition=2)
    ends = one.ends()
    nowhere = RecordMetadata("elsewhere", -1, -1, -1, "", single_replica=False)
    assert [metadata for metadata, _ in ends] == [
        nowhere._replace(topic=TOPIC, partition=0),
        nowhere,
        nowhere._replace(partition=2),
    ]
    assert isinstance(first.exception(0), BrokerError)
    assert [error for _, error in ends] == [one.exception(0) for one in (first, unknown, numbered)]
    assert isinstance(unknown.exception(0), MetadataTimeoutError)
    assert [call[0] for call in one.calls if call[0] != "send"] == ["ack", "error", "error"]


@pytest.mark.row("H15")
def test_a_record_too_large_is_told_to_interceptors_with_its_partition_and_nothing_is_raised() -> None:
    one = Appending("One")
    world = world_of(one, max_request_size=1)
    future = world.send(TOPIC, "value", b"key")
    assert isinstance(future.exception(0), RecordTooLargeError)
    assert [call[0] for call in one.calls] == ["send", "error"]
    assert one.ends() == [(RecordMetadata(TOPIC, 0, -1, -1, "", single_replica=False), future.exception(0))]


@pytest.mark.row("H16")
def test_a_topic_of_no_such_name_is_told_to_interceptor_callback_and_future() -> None:
    one = Appending("One")
    world = world_of(one, max_block_ms=1000)
    told: list[tuple[RecordMetadata | None, PenstockError | None]] = []
    future = world.send("topic abc", "value", on_ack=lambda metadata, error: told.append((metadata, error)))
    ((metadata, error),) = one.ends()
    assert metadata == RecordMetadata("topic abc", -1, -1, -1, "", single_replica=False)
    assert isinstance(error, InvalidTopicError)
    assert told == [(None, error)]
    assert future.exception(0) is error
    assert (error.topic, error.partition) == ("topic abc", -1)


@pytest.mark.row("H5")
def test_what_was_configured_is_closed_when_the_producer_cannot_be_made() -> None:
    one, two, three = Appending("One"), Appending("Two"), Appending("Three")
    three.fails = {"configure", "close"}
    never = Appending("Four")
    with pytest.raises(ValueError, match="configure"):
        _ = DirectProducer({"bootstrap.servers": "broker:1"}, interceptors=[one, two, three, never])
    assert [interceptor.calls for interceptor in (one, two, three, never)] == [["close"], ["close"], ["close"], []]
    with pytest.raises(TypeError, match="no interceptor"):
        _ = DirectProducer({"bootstrap.servers": "broker:1"}, interceptors=[one, object()])
    assert one.calls == ["close", "close"]


@pytest.mark.row("H5")
def test_what_was_configured_is_closed_when_the_producer_itself_cannot_begin() -> None:
    class Poor(FrontWorld):
        def _make_front_and_sender(self, seams: Environment) -> NoReturn:
            raise OSError("no more descriptors")

    one = Appending("One")
    with pytest.raises(OSError, match="descriptors"):
        _ = Poor(plugins={"interceptors": [one]})
    assert one.calls == ["close"]


class Seeing:
    """A serializer that sees what it is configured with."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, bool]] = []
        self.closed = 0

    def configure(self, settings: Mapping[str, object], is_key: bool) -> None:
        self.seen.append((settings["client.id"], is_key))

    def serialize(self, topic: str, value: object, headers: Headers, /) -> bytes:
        headers.add("serialized", topic.encode())
        return str(value).encode()

    def close(self) -> None:
        self.closed += 1


class Choosing:
    """A partitioner that does."""

    seen: object = None
    closed = 0

    def configure(self, settings: Mapping[str, object]) -> None:
        self.seen = settings["client.id"]

    def __call__(self, *_: object) -> int:
        return 1

    def close(self) -> None:
        self.closed += 1


@pytest.mark.row("H6")
def test_what_is_configured_sees_the_generated_name_of_the_client_and_is_closed_once() -> None:
    key, value, partitioner, interceptor = Seeing(), Seeing(), Choosing(), Appending("")
    plugins = {"key_serializer": key, "value_serializer": value, "interceptors": [interceptor]}
    world = FrontWorld(2, partitioner=partitioner, plugins=plugins)
    name = world._settings.client_id
    assert name.startswith("producer-")
    assert (key.seen, value.seen) == ([(name, True)], [(name, False)])
    assert partitioner.seen == interceptor.settings["client.id"] == name
    _ = world.send(TOPIC, "5", 6)
    (row,) = values_of(world)
    assert row.count(b"serialized") == 2
    world.at(0.1, world.end)
    world.close(1)
    world.close()
    assert (key.closed, value.closed, partitioner.closed, interceptor.calls.count("close")) == (1, 1, 1, 1)


@pytest.mark.row("H12")
def test_headers_that_plug_ins_may_change_cannot_be_changed_when_the_record_is_sent() -> None:
    seen: list[Headers] = []

    class Adding(Interceptor):
        def on_send(self, record: Record, /) -> None:
            record.headers.add("added", b"1")
            seen.append(record.headers)

    world = FrontWorld(1, plugins={"interceptors": [Adding()]})
    mine: list[tuple[str, bytes | bytearray | memoryview | None]] = [("mine", b"0")]
    _ = world.send(TOPIC, b"v", headers=mine)
    _ = world.send_many(TOPIC, [b"v"], headers=[mine])
    assert mine == [("mine", b"0")]
    for headers in seen:
        assert list(headers) == [("mine", b"0"), ("added", b"1")]
        with pytest.raises(RuntimeError, match="sent"):
            headers.add("late", b"")
    assert len(seen) == 2
    (rows,) = values_of(world)
    assert rows.count(b"added") == 2


def test_a_serializer_that_fails_is_raised_and_nothing_is_taken() -> None:
    one = Appending("")
    world = world_of(one)
    with pytest.raises(SerializationError, match="value serializer text") as caught:
        _ = world.send(TOPIC, "\ud800", partition=0)
    with pytest.raises(SerializationError):
        _ = world.send_many(TOPIC, ["fine", "\ud800"])
    assert values_of(world) == []
    ends = one.ends()
    assert ends[0] == (RecordMetadata(TOPIC, 0, -1, -1, "", single_replica=False), caught.value)
    assert [metadata.partition for metadata, _ in ends] == [0, -1, -1]


def test_a_topic_is_waited_for_before_its_records_are_serialized() -> None:
    """SND-3 comes before SND-5: the future tells, though the value could not be serialized."""
    world = FrontWorld(0, plugins={"value_serializer": "int"}, max_block_ms=100)
    assert isinstance(world.send(TOPIC, "no number").exception(0), MetadataTimeoutError)
    world.tell(1)
    with pytest.raises(SerializationError):
        _ = world.send(TOPIC, "no number")


def test_a_closed_producer_tells_interceptors_too() -> None:
    one = Appending("")
    world = world_of(one)
    world.close()
    with pytest.raises(ClosedError):
        _ = world.send(TOPIC, "v")
    assert [call if call == "close" else call[0] for call in one.calls] == ["close", "send", "error"]


def test_columns_pass_interceptors_record_by_record_and_each_is_told_its_end() -> None:
    one = Appending("!")
    world = world_of(one, partitions=2)
    many: list[Any] = []
    future = world.send_many(
        TOPIC, ["a", "b", "c"], partitions=[1, 0, 1], on_ack=lambda metadata, error: many.append((metadata, error))
    )
    world.deliver(10)
    places = [(metadata.partition, metadata.offset) for metadata, error in one.ends() if error is None]
    assert places == [(1, 10), (0, 10), (1, 11)]
    assert [call[0] for call in one.calls] == ["send"] * 3 + ["ack"] * 3
    assert many == [(future.result(0), None)]
    refused = world.send_many("elsewhere no", ["d", "e"])
    assert isinstance(refused.exception(0), InvalidTopicError)
    assert [call[0] for call in one.calls[-2:]] == ["error", "error"]


def test_an_interceptor_cannot_send_a_column_elsewhere() -> None:
    class Elsewhere(Interceptor):
        def on_send(self, record: Record, /) -> Record:
            return record._replace(topic="elsewhere")

    world = FrontWorld(1, plugins={"interceptors": [Elsewhere]}, max_block_ms=0)
    with pytest.raises(ValueError, match=f"record of topic {TOPIC} the topic elsewhere"):
        _ = world.send_many(TOPIC, [b"v"])
    assert world.send(TOPIC, b"v").exception(0).topic == "elsewhere"  # type: ignore[union-attr]


def test_what_cannot_be_closed_is_told_when_everything_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    one, two = Appending("One"), Appending("Two")
    two.fails = {"close"}
    world = world_of(one, two)
    with caplog.at_level(logging.ERROR), pytest.raises(PenstockError, match="could not be closed: close"):
        world.close()
    assert (one.calls, two.calls) == (["close"], ["close"])
    assert "plugin_failed plugin=Appending call=close" in caplog.messages
    world.close()


def test_without_plug_ins_a_producer_has_no_detour() -> None:
    assert FrontWorld(1).plugin_pipeline is None
    assert FrontWorld(1, partitioner=Choosing()).plugin_pipeline is None
    assert world_of().plugin_pipeline is not None
