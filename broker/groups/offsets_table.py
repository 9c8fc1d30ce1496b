"""State of the group coordinators on this node: groups, committed offsets, and offsets in open transactions."""

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
    """An offset that a group committed for a partition."""

    offset: int
    leader_epoch: int
    metadata: str | None
    at_ms: int
    """Time of day of the commit."""

    log_offset: int = 0
    """Its offset in the log: of two commits the later written wins, even if a transaction applies the earlier late."""


Offsets = dict[GroupTopicPartition, CommittedOffset]


class _OffsetsPartition:
    """State in one partition of `__consumer_offsets`."""

    def __init__(self, ready_at: float) -> None:
        self.ready_at = ready_at
        self.offsets: Offsets = {}
        self.pending: dict[int, dict[GroupTopicPartition, CommittedOffset | None]] = {}
        self.groups: dict[str, ClassicGroup] = {}


class GroupTable:
    """Groups and offsets by partition of `__consumer_offsets`, for the partitions that this node leads.

    Group membership is not stored: members rejoin when their coordinator changes.
    """

    def __init__(self) -> None:
        self._known: dict[int, _OffsetsPartition] = {}

    def load(self, index: int, batches: Iterable[bytes], ready_at: float) -> None:
        """Take over a partition; it counts as loading until `ready_at` (seconds)."""
        self._known[index] = _OffsetsPartition(ready_at)
        for data in batches:
            self.replay(index, data)

    def unload(self, index: int) -> None:
        """Drop a partition that another node took over or that no longer exists."""
        _ = self._known.pop(index, None)

    def loading(self, index: int, now: float) -> bool:
        """Return whether a partition is still loading."""
        return now < self._known[index].ready_at

    def replay(self, index: int, data: bytes) -> None:
        """Apply an appended batch; offsets in a transaction take effect when it commits."""
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
        """Return the committed offset, or None."""
        return self._known[index].offsets.get(place)

    def has_pending_offset(self, index: int, place: GroupTopicPartition) -> bool:
        """Return whether an open transaction has an offset for this group and partition."""
        return any(place in told for told in self._known[index].pending.values())

    def group(self, index: int, name: str, *, create: bool = False) -> ClassicGroup | None:
        """Return the group if it has or had members; with `create`, create it if missing."""
        groups = self._known[index].groups
        return groups.setdefault(name, ClassicGroup()) if create else groups.get(name)

    def groups(self) -> list[ClassicGroup]:
        """Return all groups that have or had members."""
        return [group for known in self._known.values() for group in known.groups.values()]

    def exists(self, index: int, group: str) -> bool:
        """Return whether a group has or had members, or has committed or pending offsets."""
        known = self._known[index]
        if group in known.groups:
            return True
        places = [*known.offsets, *(place for told in known.pending.values() for place in told)]
        return any(place.group == group for place in places)

    def offsets_of(self, index: int, group: str) -> list[GroupTopicPartition]:
        """Return all partitions for which a group committed an offset."""
        return [place for place in self._known[index].offsets if place.group == group]

    def all(self) -> Iterator[tuple[int, GroupTopicPartition, CommittedOffset]]:
        """Iterate over all committed offsets, with their `__consumer_offsets` partition."""
        return iter([(index, *one) for index, known in self._known.items() for one in known.offsets.items()])

    def __len__(self) -> int:
        """Return the number of committed offsets."""
        return sum(len(known.offsets) for known in self._known.values())


def _apply(offsets: Offsets, told: dict[GroupTopicPartition, CommittedOffset | None]) -> None:
    for place, committed in told.items():
        known = offsets.get(place)
        if committed is None:
            _ = offsets.pop(place, None)
        elif known is None or known.log_offset <= committed.log_offset:
            offsets[place] = committed


def encode_record(place: GroupTopicPartition, committed: CommittedOffset | None) -> InternalRecord:
    """Encode a committed offset as a record; None gives a tombstone."""
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
