"""What the coordinators of groups on this node know: committed offsets, and those that open transactions will commit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..log.batch_writer import InternalRecord, read_internal_records, read_marker
from ..log.batches import CONTROL_BIT, TRANSACTIONAL_BIT, read_header
from .membership import ClassicGroup


class GroupTopicPartition(NamedTuple):
    """A partition that a group reads."""

    group: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """Up to where it is read."""

    offset: int
    leader_epoch: int
    metadata: str | None
    at_ms: int
    """Time of day of the commit."""

    log_offset: int = 0
    """Where in the log: of two commits the later written counts, even if the earlier one was in a transaction and counts late."""


Offsets = dict[GroupTopicPartition, CommittedOffset]


class _OffsetsPartition:
    """What one partition of `__consumer_offsets` tells."""

    def __init__(self, ready_at: float) -> None:
        self.ready_at = ready_at
        self.offsets: Offsets = {}
        self.pending: dict[int, dict[GroupTopicPartition, CommittedOffset | None]] = {}
        self.groups: dict[str, ClassicGroup] = {}


class GroupTable:
    """Offsets by place, partition by partition of `__consumer_offsets`, as far as this node leads them.

    Who is in a group is not written down: members join again when their coordinator is another one.
    """

    def __init__(self) -> None:
        self._known: dict[int, _OffsetsPartition] = {}

    def load(self, index: int, batches: Iterable[bytes], ready_at: float) -> None:
        """Take a partition over; nothing is told before `ready_at` (seconds)."""
        self._known[index] = _OffsetsPartition(ready_at)
        for data in batches:
            self.replay(index, data)

    def unload(self, index: int) -> None:
        """Leave a partition to another node."""
        _ = self._known.pop(index, None)

    def loading(self, index: int, now: float) -> bool:
        """Whether it is too early to tell anything."""
        return now < self._known[index].ready_at

    def replay(self, index: int, data: bytes) -> None:
        """Learn what a batch says, which is in the log now: in a transaction, it counts when that is committed."""
        known, head = self._known[index], read_header(data)
        if head.attributes & CONTROL_BIT:
            told = known.pending.pop(head.producer_id, {})
            if read_marker(data).commit:
                _apply(known.offsets, told)
            return
        pairs = dict(_decode_record(pair, head.base_offset) for pair in read_internal_records(data))
        if head.attributes & TRANSACTIONAL_BIT:
            known.pending.setdefault(head.producer_id, {}).update(pairs)
        else:
            _apply(known.offsets, pairs)

    def get(self, index: int, place: GroupTopicPartition) -> CommittedOffset | None:
        """What was committed."""
        return self._known[index].offsets.get(place)

    def has_pending_offset(self, index: int, place: GroupTopicPartition) -> bool:
        """Whether an open transaction will commit an offset of this place."""
        return any(place in told for told in self._known[index].pending.values())

    def group(self, index: int, name: str, *, create: bool = False) -> ClassicGroup | None:
        """The group of a name, if it has or had members, or is to be made."""
        groups = self._known[index].groups
        return groups.setdefault(name, ClassicGroup()) if create else groups.get(name)

    def groups(self) -> list[ClassicGroup]:
        """All that have or had members."""
        return [group for known in self._known.values() for group in known.groups.values()]

    def exists(self, index: int, group: str) -> bool:
        """Whether anything was ever committed in the name of a group, or will be."""
        known = self._known[index]
        if group in known.groups:
            return True
        places = [*known.offsets, *(place for told in known.pending.values() for place in told)]
        return any(place.group == group for place in places)

    def offsets_of(self, index: int, group: str) -> list[GroupTopicPartition]:
        """All that a group committed."""
        return [place for place in self._known[index].offsets if place.group == group]

    def all(self) -> Iterator[tuple[int, GroupTopicPartition, CommittedOffset]]:
        """Everything that is known, with its partition."""
        return iter([(index, *one) for index, known in self._known.items() for one in known.offsets.items()])

    def __len__(self) -> int:
        """How many offsets are known."""
        return sum(len(known.offsets) for known in self._known.values())


def _apply(offsets: Offsets, told: dict[GroupTopicPartition, CommittedOffset | None]) -> None:
    for place, committed in told.items():
        known = offsets.get(place)
        if committed is None:
            _ = offsets.pop(place, None)
        elif known is None or known.log_offset <= committed.log_offset:
            offsets[place] = committed


def encode_record(place: GroupTopicPartition, committed: CommittedOffset | None) -> InternalRecord:
    """An offset as a record; without one, the record that it is forgotten."""
    return InternalRecord(
        json.dumps(place).encode(), None if committed is None else json.dumps(committed[:-1]).encode()
    )


def _decode_record(pair: InternalRecord, written_at: int) -> tuple[GroupTopicPartition, CommittedOffset | None]:
    assert pair.key is not None
    place = GroupTopicPartition(*json.loads(pair.key))
    if pair.value is None:
        return place, None
    offset, leader_epoch, metadata, at_ms = json.loads(pair.value)
    return place, CommittedOffset(offset, leader_epoch, metadata, at_ms, written_at)
