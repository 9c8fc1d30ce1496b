"""A broker's rules for producer state, small enough to see whole (BRK-1 to BRK-5, BRK-9): what shards are tested against.

One log per partition, one leader at a time. Answers are the codes of Kafka.
"""

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.broker.core.codecs import Codec, decompress

HEADER = struct.Struct(">qiibIhiqqqhii")
NONE = 0
MESSAGE_TOO_LARGE = 10
OUT_OF_ORDER = 45
INVALID_PRODUCER_EPOCH = 47
SEQUENCES = 1 << 31


class Answer(NamedTuple):
    code: int
    base_offset: int = -1
    log_append_ms: int = -1
    log_start: int = -1


class Kept(NamedTuple):
    """A batch that the broker remembers."""

    first: int
    last: int
    offset: int
    max_ts: int


@dataclass
class State:
    epoch: int
    last_five: list[Kept] = field(default_factory=list)


@dataclass
class Log:
    """One partition."""

    records: list[bytes] = field(default_factory=list)
    start: int = 0
    base: int = 0
    """Offset of the first of `records`: something foreign lies before them."""
    states: dict[int, State] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    """Record counts of the batches appended."""
    largest_batch: int = 1 << 30

    def produce(self, batch: bytes) -> Answer:
        """Judge a batch in the broker's order of checks, and append it if it is due."""
        head = HEADER.unpack_from(batch)
        max_ts, producer_id, epoch, sequence, count = head[8:]
        if len(batch) > self.largest_batch:
            return Answer(MESSAGE_TOO_LARGE)
        last = (sequence + count - 1) % SEQUENCES
        state = self.states.get(producer_id)
        if state is not None:
            if epoch == state.epoch:
                for kept in state.last_five:
                    if (kept.first, kept.last) == (sequence, last):
                        return Answer(NONE, kept.offset, kept.max_ts, self.start)
            refused = self._refuse(state, epoch, sequence)
            if refused:
                return Answer(refused, log_start=self.start)
        if state is None or state.epoch != epoch:
            state = self.states[producer_id] = State(epoch)
        offset = max(self.start, self.base) + len(self.records)
        values = read_values(decompress(Codec(head[5] & 7), batch[HEADER.size :], 1 << 24), count)
        self.records += values
        self.batches.append(count)
        state.last_five = [*state.last_five, Kept(sequence, last, offset, max_ts)][-5:]
        return Answer(NONE, offset, -1, self.start)

    @staticmethod
    def _refuse(state: State, epoch: int, sequence: int) -> int:
        if epoch < state.epoch:
            return INVALID_PRODUCER_EPOCH
        if epoch > state.epoch:
            return 0 if sequence == 0 else OUT_OF_ORDER
        expected = (state.last_five[-1].last + 1) % SEQUENCES if state.last_five else sequence
        return 0 if sequence == expected else OUT_OF_ORDER

    def restart(self) -> None:
        """After any restart a broker knows the last batch of each producer only."""
        for state in self.states.values():
            del state.last_five[:-1]

    def forget(self) -> None:
        """State expired: it takes anything."""
        self.states.clear()


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
