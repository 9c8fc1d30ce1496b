"""Hostile bytes at a real router: each is answered or its session closed, with a reason; the router and its neighbours go on."""

import os
import random
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.harness.embedded import EmbeddedCluster
from tests.harness.raw_session import RawSession
from tests.harness.stack import Stack

pytestmark = pytest.mark.process

HELLO = [1, 1, None, {}]
SEED = int(os.environ.get("PENSTOCK_SEED", "20240601"))
CLOSED = "closed"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with EmbeddedCluster(1) as cluster:
        cluster.create_topic("t", partitions=3)
        limits = {"first_message_ms": 400, "message_ms": 400, "frame_bytes_max": 65_536}
        with Stack(cluster.bootstrap, shards=1, limits=limits, kafka={"linger.ms": 0}) as found:
            yield found


@pytest.fixture
def neighbour(stack: Stack) -> Iterator[RawSession]:
    """A session from before the attack, which must work after it."""
    assert stack.router is not None
    pid, descriptors = stack.router.pid, descriptors_of(stack.router.pid)
    with stack.session(seconds=10) as session:
        assert session.acked(session.send("t", [b"before"])).level == 2
        yield session
        assert session.acked(session.send("t", [b"after"])).level == 2
    assert stack.router.poll() is None
    assert stack.router.pid == pid
    end = time.monotonic() + 5
    while descriptors_of(pid) > descriptors:
        assert time.monotonic() < end, "descriptors were left open"
        select.select([], [], [], 0.02)


def descriptors_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def framed(message: Any) -> bytes:
    body = message if isinstance(message, bytes) else msgpack.packb(message)
    return struct.pack(">I", len(body)) + body


def talk(stack: Stack, data: bytes, *, shut: bool = False, within_s: float = 3.0) -> list[Any]:
    """Send bytes; what the daemon said, and `CLOSED` at the end if it closed."""
    heard: list[Any] = []
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(stack.socket_path))
        sock.settimeout(within_s)
        got = b""
        try:
            sock.sendall(data)
            if shut:
                sock.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has heard enough
        while True:
            try:
                part = sock.recv(1 << 16)
            except TimeoutError:
                return heard
            except ConnectionResetError:
                part = b""
            if not part:
                return [*heard, CLOSED]
            got += part
            while len(got) >= 4 and len(got) >= 4 + struct.unpack_from(">I", got)[0]:
                size = struct.unpack_from(">I", got)[0]
                heard.append(msgpack.unpackb(got[4 : 4 + size], strict_map_key=False))
                got = got[4 + size :]


def ended_with(heard: list[Any], code: str) -> bool:
    return len(heard) >= 2 and heard[-1] == CLOSED and heard[-2][:3] == [131, None, code]


GREETINGS = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f",
    b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    struct.pack(">I", 65_537),
]


@pytest.mark.parametrize("data", GREETINGS)
def test_a_greeting_of_another_protocol_is_told_what_is_wrong(stack: Stack, neighbour: RawSession, data: bytes) -> None:
    assert ended_with(talk(stack, data), "protocol")


def test_every_truncation_of_a_frame_followed_by_silence_is_closed_in_time(stack: Stack, neighbour: RawSession) -> None:
    whole = framed(HELLO) + framed([2, 1, 0, "t", None, None, [b"x"], None, None])
    socks: list[socket.socket] = []
    for cut in range(1, len(whole)):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(stack.socket_path))
        sock.sendall(whole[:cut])
        socks.append(sock)
    hello = len(framed(HELLO))
    for cut, sock in enumerate(socks, start=1):
        sock.settimeout(5)
        got = b""
        if cut == hello:
            sock.close()  # a whole greeting and nothing else: that session may stay
            continue
        while part := sock.recv(4096):
            got += part
        sock.close()
        last = msgpack.unpackb(got[got.rindex(b"\x95\xcc\x83") :])
        assert last[:3] == [131, None, "too_slow"], (cut, last)


def test_every_truncation_of_a_body_with_an_honest_length_is_refused(stack: Stack, neighbour: RawSession) -> None:
    body = msgpack.packb([2, 1, 0, "t", [0, 1], [b"k", None], [b"x", b"y"], [["h", b"v"], None], [1, 2]])
    for cut in range(1, len(body)):
        heard = talk(stack, framed(HELLO) + framed(body[:cut]))
        assert ended_with(heard, "protocol"), (cut, heard)


def test_trailing_bytes_end_the_session(stack: Stack, neighbour: RawSession) -> None:
    send = msgpack.packb([2, 1, 0, "t", None, None, [b"x"], None, None])
    assert ended_with(talk(stack, framed(HELLO) + framed(send + b"\0")), "protocol")
    assert ended_with(talk(stack, framed(msgpack.packb(HELLO) + b"\0")), "protocol")


SHAPES: list[Any] = [
    [],
    {},
    b"\xc1",
    None,
    5,
    "text",
    [None],
    [-1],
    [7],
    [128],
    [129, 1, -1, {}, "x"],
    [130, []],
    [1 << 40],
    ["SEND"],
    [[1]],
    [2],
    [2, 1],
    [2, 1, 0, "t", None, None, [b"x"], None],
    [2, 1, 0, "t", None, None, [b"x"], None, None, None],
    [2, -1, 0, "t", None, None, [b"x"], None, None],
    [2, 1 << 63, 0, "t", None, None, [b"x"], None, None],
    [2, "1", 0, "t", None, None, [b"x"], None, None],
    [2, 1.0, 0, "t", None, None, [b"x"], None, None],
    [3],
    [3, None],
    [3, 1, 2],
    [4, 1],
    [4, 1, 5],
    [5, 1],
    [6, 1],
    [1, 1, "again", {}],
]


@pytest.mark.parametrize("message", SHAPES, ids=lambda message: repr(message)[:40])
def test_a_wrong_shape_ends_the_session_with_a_reason(stack: Stack, neighbour: RawSession, message: Any) -> None:
    heard = talk(stack, framed(HELLO) + framed(message))
    assert ended_with(heard, "protocol"), heard
    assert heard[-2][3]


HELLOS: list[tuple[Any, str]] = [
    ([1, 2, "a", {}], "version"),
    ([1, 0, "a", {}], "version"),
    ([1, True, "a", {}], "protocol"),
    ([1, 1, "", {}], "protocol"),
    ([1, 1, "a b", {}], "protocol"),
    ([1, 1, "x" * 129, {}], "protocol"),
    ([1, 1, "ünï", {}], "protocol"),
    ([1, 1, b"bytes", {}], "protocol"),
    ([1, 1, 5, {}], "protocol"),
    ([1, 1, "a", None], "protocol"),
    ([1, 1, "a", []], "protocol"),
    ([1, 1, "a", {"detail": "all"}], "protocol"),
    ([1, 1, "a", {"detail": 5}], "protocol"),
    ([1, 1, "a", {"unanswered_from": -1}], "protocol"),
    ([1, 1, "a", {str(i): i for i in range(100)}], "protocol"),
    ([1, 1, "a"], "protocol"),
    ([3, 1], "protocol"),
    ([6], "protocol"),
]


@pytest.mark.parametrize(("message", "code"), HELLOS, ids=lambda value: repr(value)[:40])
def test_a_wrong_greeting_is_refused_with_a_reason(
    stack: Stack, neighbour: RawSession, message: Any, code: str
) -> None:
    heard = talk(stack, framed(message))
    assert ended_with(heard, code), heard


BOMBS = [
    b"\x91" * 60_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\x94\x01\x01\xa1a" + b"\x81\xa1a" * 20_000,
    b"\x99\x02\x01\x00\xa1t\xc0\xc0\xdd\xff\xff\xff\xff",
    b"\x99\x02\x01\x00\xa1t\xdd\x7f\xff\xff\xff\xc0\xc0\xc0\xc0",
    b"\x99\x02\x01\x00\xdb\xff\xff\xff\xff",
    b"\x99\x02\x01\x00\xa1t\xc0\xc0\x91\xc6\xff\xff\xff\xff",
    b"\x94\x01\x01\xc7\x0c\xff" + bytes(12) + b"\x80",
    b"\x94\x01\x01\xd6\xff\x00\x00\x00\x00\x80",
    b"\xdc\xff\xff" * 21_000,
    b"\x94\x01\x01\xa2\xff\xfe\x80",
]


@pytest.mark.parametrize("body", BOMBS, ids=range(len(BOMBS)))
def test_bombs_and_lies_cost_nothing_and_end_the_session(stack: Stack, neighbour: RawSession, body: bytes) -> None:
    began = cpu_s(stack.router.pid)
    for greeting in (b"", framed(HELLO)):
        heard = talk(stack, greeting + framed(body))
        assert ended_with(heard, "protocol"), heard
    # Its processor time, because other programs may keep the machine busy meanwhile.
    assert cpu_s(stack.router.pid) - began < 1.0


MEANINGS: list[tuple[Any, str]] = [
    ([2, 1, 0, "../x", None, None, [b"x"], None, None], "bad_topic"),
    ([2, 1, 0, "", None, None, [b"x"], None, None], "bad_topic"),
    ([2, 1, 0, ".", None, None, [b"x"], None, None], "bad_topic"),
    ([2, 1, 0, "x" * 250, None, None, [b"x"], None, None], "bad_topic"),
    ([2, 1, 0, "unheard-of", None, None, [b"x"], None, None], "unknown_topic"),
    ([2, 1, 0, "t", -1, None, [b"x"], None, None], "bad_partition"),
    ([2, 1, 0, "t", 3, None, [b"x"], None, None], "bad_partition"),
    ([2, 1, 0, "t", 1 << 31, None, [b"x"], None, None], "bad_partition"),
    ([2, 1, 0, "t", [0, 9], None, [b"x", b"y"], None, None], "bad_partition"),
    ([2, 1, 0, "t", None, None, [b"x"], None, -1], "bad_timestamp"),
    ([2, 1, 0, "t", None, None, [b"x"], None, 1 << 63], "bad_timestamp"),
    ([2, 1, 7, "t", None, None, [b"x"], None, None], "bad_frame"),
    ([2, 1, 0, "t", None, None, [], None, None], "bad_frame"),
    ([2, 1, 0, "t", None, [b"k"], [b"x", b"y"], None, None], "bad_frame"),
    ([2, 1, 0, "t", None, ["text"], [b"x"], None, None], "bad_frame"),
    ([2, 1, 0, "t", None, None, ["text"], None, None], "bad_frame"),
    (b"\x99\x02\x01\x00\xa1t\xc0\xc0" + b"\x91" * 50_000, "bad_frame"),
    ([2, 1, 0, "t", None, None, [b"x"], [["odd"]], None], "bad_frame"),
    ([2, 1, 0, "t", None, None, [b"x"], [[b"name", b"v"]], None], "bad_frame"),
    ([2, 1, 0, "t", None, None, [b"x"], [["h", b"v"] * 1_001], None], "bad_frame"),
    ([5, 1, "begin", []], "not_supported"),
]


@pytest.mark.parametrize(("message", "code"), MEANINGS, ids=lambda value: repr(value)[:50])
def test_a_frame_that_means_nothing_is_refused_and_its_session_goes_on(
    stack: Stack, neighbour: RawSession, message: Any, code: str
) -> None:
    with stack.session(seconds=5) as session:
        session.write_bytes(framed(message))
        answer = session.answer(1)
        assert answer.code == code
        assert answer.text
        assert session.acked(session.send("t", [b"fine"], seq=2)).level == 2


def test_random_bytes_never_hurt(stack: Stack, neighbour: RawSession) -> None:
    chance = random.Random(SEED)
    whole = framed([2, 1, 0, "t", [0, None], [b"k", None], [b"x", b"y"], [["h", b"v"], None], [1, 2]])
    for _ in range(300):
        if chance.random() < 0.3:
            data = framed(chance.randbytes(chance.randint(1, 300)))
        else:
            mutated = bytearray(whole)
            for _ in range(chance.randint(1, 4)):
                mutated[chance.randrange(4, len(mutated))] = chance.randrange(256)
            data = bytes(mutated)
        heard = talk(stack, framed([1, 1, None, {}]) + data, shut=True)
        assert heard[-1] == CLOSED, (SEED, data, heard)
        assert heard[0][0] == 129


def test_many_short_connections_leave_nothing_behind(stack: Stack, neighbour: RawSession) -> None:
    for at in range(1_000):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(stack.socket_path))
            if at % 3 == 0:
                sock.sendall(framed(HELLO)[: at % 20])


def test_descriptors_passed_along_are_not_taken(stack: Stack, neighbour: RawSession) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(stack.socket_path))
        sock.sendall(framed([1, 1, None, {}]))
        for _ in range(50):
            socket.send_fds(sock, [framed([3, 1])], [0, 1, 2])
        assert stack.router is not None
        assert stack.ask("stats")["processes"][0]["descriptors"] < 60


def test_what_was_refused_is_counted_and_everything_adds_up(stack: Stack, neighbour: RawSession) -> None:
    told = stack.ask("stats")
    records = told["records"]
    ended = records["delivered"] + records["dead_lettered"]
    assert records["received"] == records["refused"] + records["pending"] + ended
    assert told["sessions"]["ended"]["protocol"] > 0
