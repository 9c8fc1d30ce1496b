"""The numbers a producer's window gives to what it writes."""

import threading

import msgpack
from penstock.client.core.window import PartitionsRequest, Window, WindowLimits
from penstock.wire import frames
from penstock.wire.frames import Type


def written(window: Window) -> list[tuple[int, int]]:
    """Type and number of each message that is due."""
    unpacker = msgpack.Unpacker()
    stream = b"".join(window.take_writes(1 << 20))
    found: list[tuple[int, int]] = []
    while stream:
        (size,) = frames.LENGTH.unpack_from(stream)
        unpacker.feed(stream[frames.LENGTH.size : frames.LENGTH.size + size])
        kind, number, *_ = unpacker.unpack()
        found.append((kind, number))
        stream = stream[frames.LENGTH.size + size :]
    return found


def test_questions_and_flushes_leave_no_gap_between_the_frames() -> None:
    window = Window(WindowLimits(10.0, 1 << 16, 1 << 20), threading.Condition(threading.Lock()), durable=True)
    window.welcome(frames.Welcome(1, 41, {}, "daemon"))
    found: list[tuple[int, int]] = []
    for _ in range(3):
        window.request_partitions(PartitionsRequest("t", lambda _partitions, _error: None))
        _ = window.add("t", 2, None, None, b"v", None, None, 100, 0.0)
        _ = window.flush()
        found += written(window)
    kinds = [kind for kind, _ in found]
    assert kinds == [Type.PARTITIONS, Type.SEND, Type.FLUSH] * 3
    assert [number for kind, number in found if kind == Type.SEND] == [42, 43, 44]
    others = [number for kind, number in found if kind != Type.SEND]
    assert len(set(others)) == len(others)
    assert min(others) > 44
