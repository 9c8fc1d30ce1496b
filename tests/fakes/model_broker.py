"""One log of the strict broker, with nothing around it: what the cores of shards and of the direct producer are tested against.

Batches are judged by `penstock.broker.core`, in its order; there are neither leaders nor replicas, and answers are Kafka's codes.
"""

import struct
from typing import NamedTuple

from penstock.broker.log.batches import BatchHeader, Verify, validate_batch
from penstock.broker.log.decompression import Codec, decompress
from penstock.broker.log.error_codes import AppendRejection
from penstock.broker.log.partition_log import DuplicateAppend, PartitionLog
from penstock.broker.log.producer_state import ProducerStateEntry, ProducerStateManager, TransactionalFlags
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
    def states(self) -> dict[int, ProducerStateEntry]:
        """What the broker knows of producers."""
        return dict(self._log.producers.snapshot())

    def produce(self, data: bytes) -> Answer:
        """Judge a batch, and append it if it is due."""
        # Time stands still for a log.
        rules = TopicRules(max_message_bytes=self.largest_batch, timestamp_after_max_ms=LONG_MAX)
        head = validate_batch(data, rules, verify=Verify.RECORDS, wall_ms=0)
        if not isinstance(head, BatchHeader):
            return Answer(int(head.error), log_start=self.start if head.has_log_start_offset else -1)
        belongs = TransactionalFlags(transactional=bool(head.attributes & TRANSACTIONAL), starts_at_zero=self.from_zero)
        placed = self._log.prepare_append(head, data, TimestampType.CREATE, wall_ms=0, belongs=belongs)
        if isinstance(placed, AppendRejection):
            return Answer(int(placed.error), log_start=self.start if placed.has_log_start_offset else -1)
        if not isinstance(placed, DuplicateAppend):
            self._log.add(placed.data)
            count = head.last_offset_delta + 1
            payload = decompress(Codec(head.attributes & 7), data[HEADER.size :], 1 << 24)
            self.records += read_values(payload, count)
            self.batches.append(count)
        return Answer(NONE, placed.base_offset, placed.log_append_time, self.start)

    def end_transaction(self, producer_id: int, epoch: int) -> None:
        """What the marker of a transaction's end does to what is known of its producer."""
        _ = self._log.producers.transaction_ended(producer_id, epoch, 0, 0)

    def write_foreign(self, count: int) -> None:
        """Somebody else appends."""
        data = made_by_hand([Rec()] * count)
        head = validate_batch(data, TopicRules(timestamp_after_max_ms=LONG_MAX), verify=Verify.RECORDS, wall_ms=0)
        assert isinstance(head, BatchHeader), head
        placed = self._log.prepare_append(head, data, TimestampType.CREATE, wall_ms=0)
        assert not isinstance(placed, AppendRejection | DuplicateAppend)
        self._log.add(placed.data)

    def restart(self) -> None:
        """After any restart a broker knows the last batch of each producer only."""
        self._log.producers.keep_last_batches()

    def forget(self) -> None:
        """State expired: it takes anything."""
        self._log.producers = ProducerStateManager()


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
