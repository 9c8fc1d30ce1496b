"""Several threads of a process talk to brokers, and kafka-python makes what it needs when it is first wanted."""

import gc
import threading
from typing import Any

import pytest
from kafka.protocol.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from penstock.producer.protocol.framing import StreamError
from penstock.producer.protocol.responses import decode_response, expected_response


def request(version: int) -> Any:
    asked: Any = DescribeConfigsRequest(resources=[], include_synonyms=False, include_documentation=False)
    asked.API_VERSION = version
    asked.with_header(correlation_id=1, client_id="tests")
    return asked


def answer(version: int) -> bytes:
    told: Any = DescribeConfigsResponse(throttle_time_ms=7, results=[])
    told.API_VERSION = version
    told.with_header(correlation_id=1)
    return bytes(told.encode(header=True))


def test_an_answer_is_read_also_when_two_threads_made_its_class_at_once_and_the_registry_kept_the_dead_one() -> None:
    made: Any = DescribeConfigsResponse
    # What is left of such a race: the class that was registered last is not the one that is kept.
    made._VERSIONS.pop(4, None)
    kept = made[4]
    del made._VERSIONS[4]
    assert made[4] is not kept
    made._VERSIONS[4] = kept
    _ = gc.collect()
    with pytest.raises(ReferenceError):
        _ = request(4).header.get_response_class()
    read: Any = decode_response(expected_response(request(4)), answer(4))
    assert (type(read), read.version, read.throttle_time_ms) == (DescribeConfigsResponse, 4, 7)


def test_threads_that_read_a_version_for_the_first_time_at_once_all_read_it() -> None:
    made: Any = DescribeConfigsResponse
    failures: list[BaseException] = []

    def read(version: int, begin: threading.Barrier) -> None:
        try:
            expected = expected_response(request(version))
            _ = begin.wait(10)
            found: Any = decode_response(expected, answer(version))
            assert (type(found), found.version) == (DescribeConfigsResponse, version)
        except (StreamError, ReferenceError, AssertionError, TypeError) as failure:
            failures.append(failure)

    for round_ in range(40):
        made._struct._compiled_encoders.clear()
        begin = threading.Barrier(8)
        threads = [threading.Thread(target=read, args=(1 + round_ % 4, begin)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert failures == []
