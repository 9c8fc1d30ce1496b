"""Hand-written codec for Produce: one gather write without copying the payload, one `struct` per partition decoded.

Versions 3 to 13: from 9 on with compact lengths and tagged fields, at 13 by topic id. The bytes equal those of
`kafka.protocol`'s encoder; `kafka.protocol` also decodes every response with unusual fields.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from kafka.protocol.producer.produce import ProduceResponse

from .api_versions import DECODE_ERRORS
from .framing import BytesLike, StreamError
from .preload import thread_safe_class

API_KEY: Final = 0
VERSION_MIN: Final = 3
VERSION_MAX: Final = 13
FLEXIBLE_FROM: Final = 9
TOPIC_ID_FROM: Final = 13
ZSTD_FROM: Final = 7

_HEADER: Final = struct.Struct(">ihhi")
_ACKS: Final = struct.Struct(">hi")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INDEX_AND_SIZE: Final = struct.Struct(">ii")


class PartitionData(NamedTuple):
    """The batch for one partition: consecutive buffers of `size` bytes in total."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    buffers: Sequence[BytesLike]
    size: int


class TopicData(NamedTuple):
    """The batches of one topic. Version 13 needs `topic_id` (16 bytes), lower versions need `name`."""

    name: str
    topic_id: bytes | None
    partitions: Sequence[PartitionData]


class Framed(NamedTuple):
    """Buffers for one gather write of `size` bytes in total, length field included."""

    buffers: list[BytesLike]
    size: int


class LeaderHint(NamedTuple):
    """The current leader, as named by a broker that is not the leader (KIP-951)."""

    leader: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    node: int
    host: str
    port: int
    rack: str


class PartitionProduceResponse(NamedTuple):
    """The response for one partition. `topic` is empty if the response uses `topic_id`. Offsets and times are -1 if the
    broker sent none. `record_errors` lists (index in the batch, message)."""

    topic: str
    topic_id: bytes | None
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    code: int
    base_offset: int
    log_append_ms: int
    log_start: int
    record_errors: list[tuple[int, str]]
    message: str
    leader_hint: LeaderHint | None


class ProduceResponseData(NamedTuple):
    """A whole Produce response. Match outcomes by topic and index, never by position."""

    outcomes: list[PartitionProduceResponse]
    throttle_ms: int
    endpoints: list[NodeEndpoint]


def encode_produce_request(
    version: int,
    correlation_id: int,
    client_id: str,
    acks: int,
    timeout_ms: int,
    topics: Sequence[TopicData],
    *,
    transactional_id: str | None = None,
) -> Framed:
    """Encode one request. It references the payload's buffers, which must not change until it is answered or lost."""
    assert VERSION_MIN <= version <= VERSION_MAX, version
    flexible = version >= FLEXIBLE_FROM
    name = client_id.encode()
    head = bytearray(_HEADER.pack(0, API_KEY, version, correlation_id))
    head += _INT16.pack(len(name)) + name
    if flexible:
        # No tagged fields in the header.
        head += b"\x00"
    head += _nullable(transactional_id, flexible=flexible)
    head += _ACKS.pack(acks, timeout_ms)
    head += uvarint(len(topics) + 1) if flexible else _INT32.pack(len(topics))
    framed: list[BytesLike] = []
    size = _frame_topics(version, topics, head, framed)
    _INT32.pack_into(framed[0], 0, size - _INT32.size)
    return Framed(framed, size)


def _frame_topics(version: int, topics: Sequence[TopicData], head: bytearray, framed: list[BytesLike]) -> int:
    """Append the topics to `framed`, with the bytes between payloads collected in `head`. Returns the total size."""
    flexible = version >= FLEXIBLE_FROM
    size = 0
    for topic in topics:
        head += _topic_head(version, topic)
        for partition in topic.partitions:
            if flexible:
                head += _INT32.pack(partition.index)
                head += uvarint(partition.size + 1)
            else:
                head += _INDEX_AND_SIZE.pack(partition.index, partition.size)
            framed.append(head)
            framed.extend(partition.buffers)
            size += len(head) + partition.size
            # The partition's tagged fields: none.
            head = bytearray(b"\x00" if flexible else b"")
        if flexible:
            head += b"\x00"
    if flexible:
        head += b"\x00"
    if head:
        framed.append(head)
        size += len(head)
    return size


def _nullable(text: str | None, *, flexible: bool) -> bytes:
    if text is None:
        return b"\x00" if flexible else _INT16.pack(-1)
    encoded = text.encode()
    return (uvarint(len(encoded) + 1) if flexible else _INT16.pack(len(encoded))) + encoded


def _topic_head(version: int, topic: TopicData) -> bytes:
    count = len(topic.partitions)
    if version >= TOPIC_ID_FROM:
        assert topic.topic_id is not None, f"version {version} goes by topic id, {topic.name} has none"
        return topic.topic_id + uvarint(count + 1)
    name = topic.name.encode()
    if version >= FLEXIBLE_FROM:
        return uvarint(len(name) + 1) + name + uvarint(count + 1)
    return _INT16.pack(len(name)) + name + _INT32.pack(count)


def uvarint(value: int) -> bytes:
    """Encode a number as an unsigned varint, as in Kafka's compact lengths."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- responses -------------------------------------------------------------------------------------------------------

_ROW_3: Final = struct.Struct(">ihqq")
_ROW_5: Final = struct.Struct(">ihqqq")
_ROW_8: Final = struct.Struct(">ihqqqih")
_USUAL_9: Final = b"\x01\x00\x00"
"""No record errors, no message, no tagged fields."""
_UVARINT_BYTES_MAX: Final = 5


class _UnusualError(Exception):
    """The response contains a field that the fast path does not decode."""


def decode_produce_response(version: int, answer: bytes) -> ProduceResponseData:
    """Decode a response: the bytes after the correlation id, as returned for `KafkaConnection.send_raw`.

    Raises StreamError if they are not a Produce response of this version.
    """
    try:
        return _read_fast(version, answer)
    except (_UnusualError, struct.error, IndexError, UnicodeDecodeError):
        return _read_all(version, answer)


def _read_fast(version: int, answer: bytes) -> ProduceResponseData:
    flexible = version >= FLEXIBLE_FROM
    outcomes: list[PartitionProduceResponse] = []
    # Flexible versions start with the header's tagged fields.
    position = _no_tags(answer, 0) if flexible else 0
    topics, position = _count(answer, position, flexible=flexible)
    for _ in range(topics):
        topic, topic_id, position = _read_topic(version, answer, position)
        partitions, position = _count(answer, position, flexible=flexible)
        for _ in range(partitions):
            index, code, offset, append_ms, start, position = _read_row(version, answer, position)
            outcomes.append(
                PartitionProduceResponse(topic, topic_id, index, code, offset, append_ms, start, [], "", None)
            )
        if flexible:
            position = _no_tags(answer, position)
    (throttle_ms,) = _INT32.unpack_from(answer, position)
    position += _INT32.size
    if flexible:
        position = _no_tags(answer, position)
    if position != len(answer):
        raise StreamError(f"{len(answer) - position} bytes behind an answer to Produce version {version}")
    return ProduceResponseData(outcomes, throttle_ms, [])


def _read_topic(version: int, answer: bytes, position: int) -> tuple[str, bytes | None, int]:
    if version >= TOPIC_ID_FROM:
        end = position + 16
        return "", answer[position:end], end
    if version >= FLEXIBLE_FROM:
        length, position = _read_uvarint(answer, position)
        end = position + length - 1
    else:
        (length,) = _INT16.unpack_from(answer, position)
        position += _INT16.size
        end = position + length
    if not position <= end <= len(answer):
        raise _UnusualError
    return answer[position:end].decode(), None, end


def _read_row(version: int, answer: bytes, position: int) -> tuple[int, int, int, int, int, int]:
    """Returns index, code, base offset, log append time, log start, and the position of the next row."""
    if version >= FLEXIBLE_FROM:
        end = position + _ROW_5.size + len(_USUAL_9)
        if answer[position + _ROW_5.size : end] != _USUAL_9:
            raise _UnusualError
        return (*_ROW_5.unpack_from(answer, position), end)
    if version >= 8:
        *row, errors, message = _ROW_8.unpack_from(answer, position)
        if errors != 0 or message != -1:
            raise _UnusualError
        index, code, offset, append_ms, start = row
        return index, code, offset, append_ms, start, position + _ROW_8.size
    if version >= 5:
        return (*_ROW_5.unpack_from(answer, position), position + _ROW_5.size)
    return (*_ROW_3.unpack_from(answer, position), -1, position + _ROW_3.size)


def _count(answer: bytes, position: int, *, flexible: bool) -> tuple[int, int]:
    if flexible:
        count, position = _read_uvarint(answer, position)
        return count - 1, position
    (count,) = _INT32.unpack_from(answer, position)
    return count, position + _INT32.size


def _no_tags(answer: bytes, position: int) -> int:
    if answer[position] != 0:
        raise _UnusualError
    return position + 1


def _read_uvarint(answer: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(_UVARINT_BYTES_MAX):
        byte = answer[position + shift]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position + shift + 1
    raise _UnusualError


def _read_all(version: int, answer: bytes) -> ProduceResponseData:
    """Decode with `kafka.protocol`'s schema, for every field that a response can have."""
    try:
        # The class also decodes the header, which has tagged fields. The correlation id was checked: zeros replace it.
        response = thread_safe_class(ProduceResponse).decode(bytes(_INT32.size) + answer, version=version, header=True)
        outcomes = [_outcome(version, topic, row) for topic in response.responses for row in topic.partition_responses]
        endpoints = [
            NodeEndpoint(node.node_id, node.host, node.port, node.rack or "") for node in response.node_endpoints or []
        ]
        return ProduceResponseData(outcomes, int(response.throttle_time_ms), endpoints)
    except (*DECODE_ERRORS, AttributeError) as error:
        raise StreamError(f"{len(answer)} bytes are no answer to Produce version {version}: {error}") from error


def _outcome(
    version: int,
    topic: ProduceResponse.TopicProduceResponse,
    row: ProduceResponse.TopicProduceResponse.PartitionProduceResponse,
) -> PartitionProduceResponse:
    by_id = version >= TOPIC_ID_FROM
    errors = [(entry.batch_index, entry.batch_index_error_message or "") for entry in row.record_errors or []]
    leader = row.current_leader
    hint = LeaderHint(leader.leader_id, leader.leader_epoch) if leader and leader.leader_epoch >= 0 else None
    return PartitionProduceResponse(
        topic="" if by_id else str(topic.name),
        topic_id=topic.topic_id.bytes if by_id and topic.topic_id else None,
        index=row.index,
        code=row.error_code,
        base_offset=row.base_offset,
        log_append_ms=row.log_append_time_ms,
        log_start=row.log_start_offset if version >= 5 else -1,
        record_errors=errors,
        message=row.error_message or "",
        leader_hint=hint if hint is not None and hint.leader >= 0 else None,
    )
