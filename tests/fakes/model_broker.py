"""One log of the strict broker, with nothing around it: what the cores of shards and of the direct producer are tested against.

Batches are judged by `penstock.broker.core`, in its order; there are neither leaders nor replicas, and answers are Kafka's codes.
"""

import struct
from typing import NamedTuple

from penstock.broker.log.batches import Head, Verify, check
from penstock.broker.log.decompression import Codec, decompress
from penstock.broker.log.error_codes import Refusal
from penstock.broker.log.partition_log import Known, PartitionLog
from penstock.broker.log.producer_state import Kind, Producer, ProducerTable
from penstock.broker.log.topics import LONG_MAX, TimestampType, TopicRules

from tests.harness.batches import Rec
from tests.harness.batches import batch as made_by_hand

HEADER = struct.Struct(">qiibIhiqqqhii")
NONE = 0
MESSAGE_TOO_LARGE = 10
OUT_OF_ORDER = 45
INVALID_PRODUCER_EPOCH = 47
TRANSACTIONAL = 0x10


class Answer(NamedTuple):
    code: int
    base_offset: int = -1
    log_append_ms: int = -1
    log_start: int = -1


class Log:
    """One partition. `base`: offset of the first of our records; something foreign lies before them."""

    def __init__(self, base: int = 0) -> None:
        self.records: list[bytes] = []
        """Values of our records, those before the start of the log too."""
        self.batches: list[int] = []
        """Record counts of the batches appended."""
        self.largest_batch = 1 << 30
        self.from_zero = False
        """Transactions are of version 2."""
        self._log = PartitionLog()
        if base:
            self.write_foreign(base)

    @property
    def start(self) -> int:
        """Offset at which the log begins."""
        return self._log.start_offset

    @start.setter
    def start(self, offset: int) -> None:
        """All that lies before is deleted; the log goes on there at least."""
        self._log.delete_before(offset)

    @property
    def states(self) -> dict[int, Producer]:
        """What the broker knows of producers."""
        return dict(self._log.producers.snapshot())

    def produce(self, data: bytes) -> Answer:
        """Judge a batch, and append it if it is due."""
        # Time stands still for a log.
        rules = TopicRules(max_message_bytes=self.largest_batch, timestamp_after_max_ms=LONG_MAX)
        head = check(data, rules, verify=Verify.RECORDS, wall_ms=0)
        if not isinstance(head, Head):
            return Answer(int(head.error), log_start=self.start if head.tells_log_start else -1)
        belongs = Kind(transactional=bool(head.attributes & TRANSACTIONAL), from_zero=self.from_zero)
        placed = self._log.place(head, data, TimestampType.CREATE, wall_ms=0, belongs=belongs)
        if isinstance(placed, Refusal):
            return Answer(int(placed.error), log_start=self.start if placed.tells_log_start else -1)
        if not isinstance(placed, Known):
            self._log.add(placed.data)
            count = head.last_offset_delta + 1
            payload = decompress(Codec(head.attributes & 7), data[HEADER.size :], 1 << 24)
            self.records += read_values(payload, count)
            self.batches.append(count)
        return Answer(NONE, placed.base_offset, placed.log_append_time, self.start)

    def end_transaction(self, producer_id: int, epoch: int) -> None:
        """What the marker of a transaction's end does to what is known of its producer."""
        _ = self._log.producers.ended(producer_id, epoch, 0, 0)

    def write_foreign(self, count: int) -> None:
        """Somebody else appends."""
        data = made_by_hand([Rec()] * count)
        head = check(data, TopicRules(timestamp_after_max_ms=LONG_MAX), verify=Verify.RECORDS, wall_ms=0)
        assert isinstance(head, Head), head
        placed = self._log.place(head, data, TimestampType.CREATE, wall_ms=0)
        assert not isinstance(placed, Refusal | Known)
        self._log.add(placed.data)

    def restart(self) -> None:
        """After any restart a broker knows the last batch of each producer only."""
        self._log.producers.shrink_to_last()

    def forget(self) -> None:
        """State expired: it takes anything."""
        self._log.producers = ProducerTable()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7


def read_values(data: bytes, count: int) -> list[bytes]:
    """Values of records, in order."""
    values: list[bytes] = []
    at = 0
    for index in range(count):
        size, at = _varint(data, at)
        end = at + size
        _, body = _varint(data, at + 1)
        delta, body = _varint(data, body)
        assert delta == index
        key, body = _varint(data, body)
        value, body = _varint(data, body + max(0, key))
        values.append(data[body : body + value])
        at = end
    assert at == len(data)
    return values
