"""The examples of the protocol's reference page are what the code says and understands, byte by byte."""

import ast
import re
from pathlib import Path

import msgpack
import pytest
from penstock.producer.kernel import frames as kernel
from penstock.wire import frames
from penstock.wire.frames import Code

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"
EXAMPLE = re.compile(r"```python\n(.*?)```\n```hex\n(.*?)```", re.DOTALL)


def examples() -> list[tuple[list[object], bytes]]:
    found = EXAMPLE.findall(PAGE.read_text())
    return [(ast.literal_eval(re.sub(r"#.*\n", "", source)), bytes.fromhex(data)) for source, data in found]


@pytest.mark.parametrize(("message", "data"), examples())
def test_an_example_is_these_bytes_and_is_understood(message: list[object], data: bytes) -> None:
    assert frames.pack(message) == data
    found, after = kernel.find_messages(data, 0, len(data), frames.FRAME_BYTES_MAX)
    assert (found, after) == ([(4, len(data))], len(data))
    kind = kernel.message_type(data, 4, len(data))
    if kind == frames.Type.SEND:
        head = kernel.read_head(data, 4, len(data))
        scattered = kernel.scatter(
            data,
            4,
            len(data),
            head.position,
            partition_count=6,
            sticky=0,
            ignore_keys=False,
            now_ms=0,
            header_count_max=10,
            record_bytes_max=1_000,
            reserved_headers=(),
            want_partitions=False,
        )
        values = message[6]
        assert isinstance(values, list)
        assert scattered.count == len(values)
    elif kind < frames.Type.WELCOME:
        frames.decode_client(data[4:])
    else:
        frames.decode_daemon(data[4:])


def test_every_type_has_an_example_but_txn() -> None:
    kinds = {message[0] for message, _ in examples()}
    assert kinds == {int(kind) for kind in frames.Type} - {int(frames.Type.TXN)}


def test_what_the_code_builds_is_what_the_page_shows() -> None:
    shown = {data for _, data in examples()}
    assert frames.hello("billing") in shown
    assert frames.welcome(-1, {"frame_bytes_max": 1 << 20}, "penstock") in shown
    assert frames.acks([frames.Ack(7, 2, [frames.Run(3, 1041, 2, -1)])]) in shown
    assert frames.refused(8, Code.BAD_TOPIC, "topic is not text") in shown
    assert frames.done(9) in shown
    assert frames.done(10, [frames.PartitionInfo(0, 1, [1, 2], [1, 2])]) in shown


def test_every_code_is_in_the_table() -> None:
    named = set(
        re.findall(r"`([a-z_]+)`", "\n".join(line for line in PAGE.read_text().splitlines() if line[:1] == "|"))
    )
    assert {str(code) for code in Code} <= named


def test_examples_are_plain_msgpack() -> None:
    for message, data in examples():
        assert msgpack.unpackb(data[4:]) == message
