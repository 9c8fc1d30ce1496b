"""Transactions of the direct producer, with its real thread and sockets, against the embedded broker in both versions."""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest
from penstock.api.errors import (
    ClosedError,
    CommitFailedError,
    CommittedNotVisibleError,
    CommitTimeoutError,
    CommitUnknownError,
    FatalError,
    InitTransactionsRefusedError,
    InvalidTopicError,
    MetadataTimeoutError,
    PenstockError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionStateError,
    WaitTimeoutError,
)
from penstock.producer import DirectProducer
from penstock.runtime.clock import monotonic

from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until
from tests.harness.readers import read_committed

pytestmark = pytest.mark.process
PATIENCE_S: Final = 20.0
PRODUCE, LIST_OFFSETS, FIND_COORDINATOR, INIT, ADD_OFFSETS, END, OFFSET_COMMIT = 0, 2, 10, 22, 25, 26, 28
FOR_EVER: Final = -1


class Group(NamedTuple):
    """What a consumer tells of its membership."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def cluster(request: pytest.FixtureRequest) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1, arguments=["--transaction-version", str(request.param)]) as running:
        yield running


@pytest.fixture
def topic(cluster: EmbeddedCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:90]
    yield cluster.create_topic(name, 3)
    for op in ("clear", "free_markers", "allow_all"):
        _ = command(cluster, op=op)


def command(cluster: EmbeddedCluster, **fields: object) -> dict[str, object]:
    return cluster.nodes[0].command(**fields)


def made(cluster: EmbeddedCluster, topic: str, **settings: object) -> DirectProducer:
    """A producer with the topic's name for its transactional id."""
    given: dict[str, object] = {"linger_ms": 0, "max_block_ms": 10_000, "transactional_id": topic} | settings
    return DirectProducer(bootstrap_servers=cluster.bootstrap, **given)


def values(cluster: EmbeddedCluster, topic: str) -> list[bytes | None]:
    return sorted(one.value or b"" for one in read_committed(cluster, topic))


def test_readers_of_committed_records_see_commits_whole_and_nothing_of_aborts(
    cluster: EmbeddedCluster, topic: str
) -> None:
    expected: list[bytes] = []
    with made(cluster, topic) as producer:
        producer.init_transactions()
        for number in range(12):
            producer.begin_transaction()
            records = [b"%02d-%d" % (number, i) for i in range(5)]
            futures = [producer.send(topic, value, partition=i % 3) for i, value in enumerate(records)]
            if number % 3 == 2:
                # Some of it is on its way.
                _ = futures[0].result(PATIENCE_S)
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                assert [future.exception(0) for future in futures] == [None] * 5
                expected += records
    assert values(cluster, topic) == sorted(expected)


def test_an_empty_transaction_costs_nothing_and_many_threads_share_one(cluster: EmbeddedCluster, topic: str) -> None:
    with made(cluster, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.commit_transaction()
        producer.begin_transaction()
        producer.abort_transaction()
        producer.begin_transaction()

        def work(name: int) -> None:
            for i in range(200):
                _ = producer.send(topic, b"%d:%d" % (name, i))

        workers = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        producer.commit_transaction()
        assert producer.held_bytes == 0
    assert len(values(cluster, topic)) == 800


@pytest.mark.row("H22")
def test_offsets_are_committed_with_the_transaction_and_forgotten_with_an_abort(
    cluster: EmbeddedCluster, topic: str
) -> None:
    with made(cluster, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        _ = producer.send(topic, b"out")
        producer.send_offsets_to_transaction({(topic, 0): 7, (topic, 1): (9, None, "note")}, "readers-" + topic)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({(topic, 0): 100}, "readers-" + topic)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({}, "readers-" + topic)
        producer.commit_transaction()
    assert committed(cluster, topic, "readers-" + topic) == {0: 7, 1: 9}


def committed(cluster: EmbeddedCluster, topic: str, group: str) -> dict[int, int]:
    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 2})
    try:
        found = reader.committed([TopicPartition(topic, i) for i in range(3)], timeout=10)
    finally:
        reader.close()
    return {one.partition: one.offset for one in found if one.offset >= 0}


@pytest.mark.row("H22")
def test_what_is_no_group_or_no_offset_is_an_error_of_the_caller_and_changes_nothing(
    cluster: EmbeddedCluster, topic: str
) -> None:
    with made(cluster, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for group in (None, "", object()):
            with pytest.raises((TypeError, ValueError)):
                producer.send_offsets_to_transaction({(topic, 0): 1}, group)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="without a member id"):
            producer.send_offsets_to_transaction({(topic, 0): 1}, Group("g", 2, ""))
        for offsets in ({(topic, 0): -1}, {(topic, -1): 1}, {(topic, 0): "1"}, {topic: 1}):
            with pytest.raises((TypeError, ValueError)):
                producer.send_offsets_to_transaction(offsets, "g")  # type: ignore[arg-type]
        _ = producer.send(topic, b"goes on")
        producer.commit_transaction()
    assert values(cluster, topic) == [b"goes on"]


def test_offsets_of_a_member_that_the_group_does_not_know_are_not_committed(
    cluster: EmbeddedCluster, topic: str
) -> None:
    with made(cluster, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(CommitFailedError):
            producer.send_offsets_to_transaction({(topic, 0): 7}, Group("g-" + topic, 5, "nobody"))
        with pytest.raises(CommitFailedError):
            _ = producer.send(topic, b"refused")
        with pytest.raises(TransactionAbortableError):
            producer.commit_transaction()
        producer.abort_transaction()
    assert committed(cluster, topic, "g-" + topic) == {}


def test_a_second_producer_fences_the_first_which_says_so_from_then_on(cluster: EmbeddedCluster, topic: str) -> None:
    first = made(cluster, topic)
    first.init_transactions()
    first.begin_transaction()
    _ = first.send(topic, b"the first's").result(PATIENCE_S)
    with made(cluster, topic) as second:
        second.init_transactions()
        second.begin_transaction()
        _ = second.send(topic, b"the second's")
        second.commit_transaction()
    assert first.send(topic, b"late").exception(PATIENCE_S) is not None
    with pytest.raises(PenstockError):
        first.commit_transaction()
    with contextlib.suppress(ProducerFencedError):
        first.abort_transaction()
    with pytest.raises(ProducerFencedError):
        first.begin_transaction()
    with pytest.raises(ProducerFencedError):
        _ = first.send(topic, b"never")
    first.close()
    assert values(cluster, topic) == [b"the second's"]


@pytest.mark.row("H24")
def test_calls_that_do_not_fit_are_refused_and_change_nothing(cluster: EmbeddedCluster, topic: str) -> None:
    producer = made(cluster, topic)
    for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
        with pytest.raises(TransactionStateError):
            call()
    with pytest.raises(TransactionStateError):
        _ = producer.send(topic, b"too early")
    assert len(producer.partitions_for(topic)) == 3
    producer.init_transactions()
    with pytest.raises(TransactionStateError):
        producer.init_transactions()
    with pytest.raises(TransactionStateError):
        _ = producer.send(topic, b"in none")
    producer.begin_transaction()
    with pytest.raises(TransactionStateError):
        producer.begin_transaction()
    _ = producer.send(topic, b"in one")
    producer.commit_transaction()
    with pytest.raises(TransactionStateError):
        producer.commit_transaction()
    with pytest.raises(TransactionStateError):
        producer.send_offsets_to_transaction({(topic, 0): 1}, "g")
    producer.close()
    for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
        with pytest.raises(ClosedError):
            call()
    assert values(cluster, topic) == [b"in one"]


def test_a_producer_without_a_transactional_id_has_no_transactions(cluster: EmbeddedCluster, topic: str) -> None:
    with made(cluster, topic, transactional_id=None) as producer:
        with pytest.raises(TransactionStateError, match="has no transactional"):
            producer.init_transactions()
        _ = producer.send(topic, b"outside").result(PATIENCE_S)


@pytest.mark.row("H21")
@pytest.mark.parametrize("what", ["too large", "no metadata", "no topic"])
def test_a_record_that_was_not_taken_leaves_only_an_abort(cluster: EmbeddedCluster, topic: str, what: str) -> None:
    with made(cluster, topic, max_request_size=2000, max_block_ms=3000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        good = producer.send(topic, b"good")
        match what:
            case "too large":
                bad, kind = producer.send(topic, bytes(3000)), RecordTooLargeError
            case "no metadata":
                bad, kind = producer.send("nowhere", b"value"), MetadataTimeoutError
            case _:
                bad, kind = producer.send("no topic", b"value"), InvalidTopicError
        assert isinstance(bad.exception(0), kind)
        with pytest.raises(TransactionAbortableError, match="was not taken"):
            producer.commit_transaction()
        with pytest.raises(TransactionAbortableError):
            _ = producer.send(topic, b"more")
        producer.abort_transaction()
        assert isinstance(good.exception(0), TransactionAbortedError | None)
        producer.begin_transaction()
        _ = producer.send(topic, b"next")
        producer.commit_transaction()
    assert values(cluster, topic) == [b"next"]


@pytest.mark.row("H19")
@pytest.mark.parametrize("api", [FIND_COORDINATOR, INIT])
def test_init_transactions_that_took_too_long_goes_on_and_only_it_may_be_called(
    cluster: EmbeddedCluster, topic: str, api: int
) -> None:
    _ = command(cluster, op="delay_answer", api=api, ms=1000, times=1)
    with made(cluster, topic) as producer:
        with pytest.raises(WaitTimeoutError):
            producer.init_transactions(0.2)
        with pytest.raises(TransactionStateError):
            producer.begin_transaction()
        with pytest.raises(TransactionStateError):
            _ = producer.send(topic, b"early")
        producer.init_transactions()
        producer.begin_transaction()
        _ = producer.send(topic, b"then")
        producer.commit_transaction()
    assert values(cluster, topic) == [b"then"]


@pytest.mark.row("H19")
def test_after_init_transactions_took_too_long_a_producer_can_be_closed(cluster: EmbeddedCluster, topic: str) -> None:
    _ = command(cluster, op="drop_answer", api=INIT, times=FOR_EVER)
    producer = made(cluster, topic)
    with pytest.raises(WaitTimeoutError):
        producer.init_transactions(0.1)
    producer.close(5)


def test_a_flush_in_a_transaction_waits_for_no_linger(cluster: EmbeddedCluster, topic: str) -> None:
    with made(cluster, topic, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        producer.init_transactions()
        for _ in range(2):
            producer.begin_transaction()
            sent = [producer.send(topic, b"value", partition=index) for index in range(3)]
            producer.flush(PATIENCE_S)
            assert [one.exception(0) for one in sent] == [None] * 3
            producer.commit_transaction()


@pytest.mark.row("E22", "F52")
def test_a_commit_waits_for_no_linger(cluster: EmbeddedCluster, topic: str) -> None:
    with made(cluster, topic, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        producer.init_transactions()
        for number in range(3):
            producer.begin_transaction()
            for index in range(3):
                _ = producer.send(topic, b"%d" % number, partition=index)
            producer.commit_transaction(PATIENCE_S)
    assert len(values(cluster, topic)) == 9


def test_who_waits_in_vain_is_told_what_stands_in_the_way() -> None:
    producer = DirectProducer(bootstrap_servers="127.0.0.1:1", transactional_id="lonely")
    with pytest.raises(WaitTimeoutError, match="Connection refused"):
        producer.init_transactions(0.5)
    producer.close()


def test_a_coordinator_that_is_not_available_is_named_to_who_waits_for_it(cluster: EmbeddedCluster, topic: str) -> None:
    _ = command(cluster, op="fail_next", api=FIND_COORDINATOR, error="COORDINATOR_NOT_AVAILABLE", times=FOR_EVER)
    with made(cluster, topic) as producer:
        with pytest.raises(WaitTimeoutError, match="FindCoordinator is answered with COORDINATOR_NOT_AVAILABLE"):
            producer.init_transactions(0.5)
        _ = command(cluster, op="clear")
        producer.init_transactions()


def in_flight(producer: DirectProducer) -> bool:
    return any(value for name, value in producer.metrics().items() if name.name == "requests-in-flight")


@pytest.mark.row("H23", "F54")
@pytest.mark.parametrize("api", [FIND_COORDINATOR, INIT, ADD_OFFSETS, OFFSET_COMMIT, END])
def test_a_forced_close_releases_who_waits_for_a_coordinator(
    cluster: EmbeddedCluster, topic: str, api: int, request: pytest.FixtureRequest
) -> None:
    if api == ADD_OFFSETS and request.node.callspec.params["cluster"] == 2:
        pytest.skip("version 2 has no such request")
    producer = made(cluster, topic, max_block_ms=60_000)
    errors: list[PenstockError] = []
    if api not in (FIND_COORDINATOR, INIT):
        producer.init_transactions()
        producer.begin_transaction()
        _ = producer.send(topic, b"value").result(PATIENCE_S)
    _ = command(cluster, op="drop_answer", api=api, times=FOR_EVER)

    def call() -> None:
        try:
            if api in (FIND_COORDINATOR, INIT):
                producer.init_transactions()
            elif api == END:
                producer.commit_transaction()
            else:
                producer.send_offsets_to_transaction({(topic, 0): 1}, "g-" + topic)
                producer.commit_transaction()
        except PenstockError as error:
            errors.append(error)

    waiting = threading.Thread(target=call)
    waiting.start()
    _ = wait_until(lambda: in_flight(producer), seconds=PATIENCE_S, what="a request is out")
    producer.close(0.3)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    (error,) = errors
    # A close aborts first: offsets that had not gone out yet fail with that.
    expected = {END: CommitUnknownError, OFFSET_COMMIT: (ClosedError, TransactionAbortedError)}.get(api, ClosedError)
    assert isinstance(error, expected)
    assert isinstance(error, CommitUnknownError) == (api == END)


@pytest.mark.row("F51")
def test_an_orderly_close_aborts_the_transaction_that_is_open(cluster: EmbeddedCluster, topic: str) -> None:
    producer = made(cluster, topic)
    producer.init_transactions()
    producer.begin_transaction()
    sent = producer.send(topic, b"never to be seen")
    _ = sent.result(PATIENCE_S)
    producer.close(PATIENCE_S)
    with made(cluster, topic, transactional_id="reader-" + topic) as other:
        other.init_transactions()
        other.begin_transaction()
        _ = other.send(topic, b"behind it", partition=sent.result(0).partition)
        other.commit_transaction()
    # What is behind an open transaction would not be read.
    assert values(cluster, topic) == [b"behind it"]


@pytest.mark.row("F51", "G55")
def test_a_commit_that_timed_out_is_brought_to_its_end_by_a_close(cluster: EmbeddedCluster, topic: str) -> None:
    producer = made(cluster, topic)
    producer.init_transactions()
    producer.begin_transaction()
    _ = command(cluster, op="delay_answer", api=PRODUCE, ms=700, times=1)
    _ = producer.send(topic, b"committed")
    with pytest.raises(CommitTimeoutError):
        producer.commit_transaction(0.1)
    with pytest.raises(TransactionStateError):
        producer.abort_transaction()
    producer.close(PATIENCE_S)
    assert values(cluster, topic) == [b"committed"]


@pytest.mark.row("F51", "G55")
@pytest.mark.parametrize("commit", [False, True], ids=["abort", "commit"])
def test_a_close_goes_on_until_the_coordinator_has_ended_the_transaction(
    cluster: EmbeddedCluster, topic: str, commit: bool
) -> None:
    producer = made(cluster, topic)
    producer.init_transactions()
    producer.begin_transaction()
    part = producer.send(topic, b"value").result(PATIENCE_S).partition
    _ = command(cluster, op="fail_next", api=END, error="CONCURRENT_TRANSACTIONS", times=3)
    if commit:
        with pytest.raises(CommitTimeoutError):
            producer.commit_transaction(0)
    producer.close(PATIENCE_S)
    with made(cluster, topic, transactional_id="reader-" + topic) as other:
        other.init_transactions()
        other.begin_transaction()
        _ = other.send(topic, b"behind it", partition=part)
        other.commit_transaction()
    assert values(cluster, topic) == ([b"behind it", b"value"] if commit else [b"behind it"])


@pytest.mark.row("F63")
def test_a_close_that_may_not_abort_ends_at_once(cluster: EmbeddedCluster, topic: str) -> None:
    producer = made(cluster, topic)
    producer.init_transactions()
    producer.begin_transaction()
    # Refused for good once the commit has waited in vain: some seconds after the first try.
    _ = command(cluster, op="fail_next", api=PRODUCE, error="NOT_ENOUGH_REPLICAS", times=5)
    _ = command(cluster, op="fail_next", api=PRODUCE, error="INVALID_RECORD", times=1)
    record = producer.send(topic, b"value")
    with pytest.raises(CommitTimeoutError):
        producer.commit_transaction(0.1)
    assert record.exception(PATIENCE_S) is not None
    # How the commit ended was never heard by who called it, so there is no other call but that one.
    with pytest.raises(TransactionStateError):
        producer.abort_transaction()
    began = monotonic()
    producer.close(2 * PATIENCE_S)
    assert monotonic() - began < PATIENCE_S


@pytest.mark.row("F63")
def test_a_producer_that_cannot_go_on_closes_at_once(cluster: EmbeddedCluster, topic: str) -> None:
    producer = made(cluster, topic)
    producer.init_transactions()
    producer.begin_transaction()
    _ = command(cluster, op="fail_next", api=PRODUCE, error="TRANSACTIONAL_ID_AUTHORIZATION_FAILED", times=1)
    assert isinstance(producer.send(topic, b"value").exception(PATIENCE_S), FatalError)
    with pytest.raises(FatalError):
        producer.commit_transaction()
    with pytest.raises(FatalError):
        producer.abort_transaction()
    producer.close(PATIENCE_S)


def test_a_commit_that_times_out_is_called_again_and_tells_how_it_ended(cluster: EmbeddedCluster, topic: str) -> None:
    with made(cluster, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        _ = producer.send(topic, b"value")
        _ = command(cluster, op="delay_answer", api=END, ms=700, times=1)
        with pytest.raises(CommitTimeoutError):
            producer.commit_transaction(0.2)
        with pytest.raises(TransactionStateError):
            producer.begin_transaction()
        producer.commit_transaction()
        producer.begin_transaction()
        producer.abort_transaction()
    assert values(cluster, topic) == [b"value"]


def test_a_commit_whose_markers_are_late_is_told_as_committed_and_not_visible(
    cluster: EmbeddedCluster, topic: str
) -> None:
    with made(cluster, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        _ = producer.send(topic, b"late", partition=0)
        _ = command(cluster, op="hold_markers", transactional_id=topic)
        with pytest.raises(CommittedNotVisibleError):
            producer.commit_transaction(2.0)
        assert values(cluster, topic) == []
        _ = command(cluster, op="free_markers")
        producer.begin_transaction()
        _ = producer.send(topic, b"next", partition=0)
        producer.commit_transaction()
    assert values(cluster, topic) == [b"late", b"next"]


def test_lost_coordinator_answers_are_asked_for_again(cluster: EmbeddedCluster, topic: str) -> None:
    with made(cluster, topic) as producer:
        for api in (FIND_COORDINATOR, INIT):
            _ = command(cluster, op="cut_answer", api=api, times=1)
        producer.init_transactions()
        for number in range(3):
            producer.begin_transaction()
            _ = producer.send(topic, b"%d" % number)
            _ = command(cluster, op="cut_answer", api=END, times=1)
            producer.commit_transaction()
    assert values(cluster, topic) == [b"0", b"1", b"2"]


def test_batches_whose_answers_are_lost_are_sent_again_and_written_once(cluster: EmbeddedCluster, topic: str) -> None:
    with made(cluster, topic) as producer:
        producer.init_transactions()
        for number in range(3):
            producer.begin_transaction()
            _ = command(cluster, op="cut_answer", api=PRODUCE, times=1)
            for i in range(10):
                _ = producer.send(topic, b"%d-%d" % (number, i), partition=i % 3)
            producer.commit_transaction()
    assert len(values(cluster, topic)) == 30


def test_a_refused_record_leaves_an_abort_and_the_next_transaction_works(cluster: EmbeddedCluster, topic: str) -> None:
    with made(cluster, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        _ = command(cluster, op="fail_next", api=PRODUCE, error="TOPIC_AUTHORIZATION_FAILED", times=1)
        refused = producer.send(topic, b"refused").exception(PATIENCE_S)
        assert refused is not None
        with pytest.raises(TransactionAbortableError, match="TOPIC_AUTHORIZATION_FAILED"):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        _ = producer.send(topic, b"next")
        producer.commit_transaction()
    assert values(cluster, topic) == [b"next"]


def test_a_user_without_rights_to_the_id_is_told_and_may_try_again(cluster: EmbeddedCluster, topic: str) -> None:
    with made(cluster, topic) as producer:
        _ = command(cluster, op="fail_next", api=INIT, error="TRANSACTIONAL_ID_AUTHORIZATION_FAILED", times=1)
        with pytest.raises(InitTransactionsRefusedError):
            producer.init_transactions()
        producer.init_transactions()
        producer.begin_transaction()
        producer.commit_transaction()


def test_callbacks_may_ask_for_no_transaction(cluster: EmbeddedCluster, topic: str) -> None:
    told: list[BaseException] = []
    with made(cluster, topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()

        def tries(_metadata: object, _error: object) -> None:
            for call in (producer.init_transactions, producer.begin_transaction, producer.commit_transaction):
                try:
                    call()
                except RuntimeError as error:
                    told.append(error)

        _ = producer.send(topic, b"value", on_ack=tries).result(PATIENCE_S)
        producer.commit_transaction()
    assert len(told) == 3


def test_a_child_has_no_transaction_and_begins_with_one_of_its_own(cluster: EmbeddedCluster, topic: str) -> None:
    producer = made(cluster, topic)
    producer.init_transactions()
    producer.begin_transaction()
    _ = producer.send(topic, b"the parent's")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                _ = producer.send(topic, b"in none")
            except TransactionStateError:
                code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    producer.commit_transaction()
    producer.close()
    assert values(cluster, topic) == [b"the parent's"]


def test_the_coordinator_ends_a_transaction_that_lasts_too_long_and_the_producer_says_so(
    cluster: EmbeddedCluster, topic: str
) -> None:
    limits = {"transaction_timeout_ms": 100}
    _ = command(cluster, op="limit", name="transaction_check_interval_ms", value=50)
    try:
        producer = made(cluster, topic, **limits)
        producer.init_transactions()
        producer.begin_transaction()
        _ = producer.send(topic, b"too slow", partition=0).result(PATIENCE_S)

        def refused() -> bool:
            return producer.send(topic, b"late", partition=0).exception(PATIENCE_S) is not None

        _ = wait_until(refused, seconds=PATIENCE_S, what="the transaction is over")
        with pytest.raises((TransactionAbortableError, FatalError)):
            producer.commit_transaction()
        producer.close(PATIENCE_S)
    finally:
        _ = command(cluster, op="limit", name="transaction_check_interval_ms", value=10_000)
    assert values(cluster, topic) == []
