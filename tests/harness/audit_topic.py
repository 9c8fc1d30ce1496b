"""What an audit topic says, held against the records that are there: a plain reading, by ordinal, of totals and ids."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.wire.audit_records import (
    AuditHeartbeat,
    AuditHole,
    AuditIntake,
    AuditOutcome,
    AuditRange,
    AuditRecord,
    decode,
)
from penstock.wire.record_ids import incarnation_text

from .kafka_cluster import Cluster
from .readers import read_topic
from .records import Found

TOPIC = "penstock.audit"
Place = tuple[str, str]


@dataclass
class Told:
    """The newest record of each key."""

    latest: dict[bytes, AuditRecord] = field(default_factory=dict)
    records: list[AuditRecord] = field(default_factory=list)

    def heartbeats(self) -> dict[str, AuditHeartbeat]:
        return {found.incarnation: found for found in self.latest.values() if isinstance(found, AuditHeartbeat)}

    def intakes(self, topic: str) -> list[AuditIntake]:
        found = [one for one in self.latest.values() if isinstance(one, AuditIntake) and one.topic == topic]
        return sorted(found, key=lambda one: (one.incarnation, one.era, one.minute))

    def outcomes(self, topic: str) -> list[AuditOutcome]:
        return [one for one in self.latest.values() if isinstance(one, AuditOutcome) and one.topic == topic]

    def ranges(self, topic: str) -> dict[tuple[str, int], list[AuditRange]]:
        """By incarnation and origin, ascending."""
        found: dict[tuple[str, int], list[AuditRange]] = {}
        for intake in self.intakes(topic):
            for part in intake.ranges:
                found.setdefault((intake.incarnation, part.origin), []).append(part)
        return {place: sorted(parts, key=lambda part: part.first) for place, parts in found.items()}

    def holes(self, topic: str) -> dict[tuple[str, int], list[AuditHole]]:
        found: dict[tuple[str, int], list[AuditHole]] = {}
        for intake in self.intakes(topic):
            for hole in intake.holes:
                found.setdefault((intake.incarnation, hole.origin), []).append(hole)
        return found


def read_audit(cluster: Cluster, topic: str = TOPIC) -> Told:
    """All that the topic says; of one incarnation versions rise with the offsets of one partition."""
    told = Told()
    newest: dict[str, tuple[int, int]] = {}
    for found in sorted(read_topic(cluster, topic), key=lambda found: (found.partition, found.offset)):
        assert found.headers == ()
        assert found.numbered is None, "a record that counts others carries no id"
        record = decode(found.key, found.value)
        partition, version = newest.get(record.incarnation, (found.partition, -1))
        assert partition == found.partition, f"{record.incarnation} lies in two partitions"
        assert record.version > version, f"{record} after version {version}"
        newest[record.incarnation] = (found.partition, record.version)
        told.records.append(record)
        assert found.key is not None
        told.latest[found.key] = record
    return told


def ids_of(found: Iterable[Found]) -> dict[tuple[str, int], dict[int, list[int]]]:
    """By incarnation and origin: ordinal to offsets."""
    ids: dict[tuple[str, int], dict[int, list[int]]] = {}
    for record in found:
        if record.numbered is not None:
            incarnation, origin, ordinal = record.numbered
            place = (incarnation_text(incarnation), origin)
            ids.setdefault(place, {}).setdefault(ordinal, []).append(record.offset)
    return ids


def check_balance(told: Told, topic: str, records: Sequence[Found], *, settled: bool = True) -> Mapping[str, int]:
    """Everything that lies in the topic was told, once, and what was told to be there is. Returns records by incarnation."""
    landed, ranges, holes = ids_of(records), told.ranges(topic), told.holes(topic)
    assert set(landed) <= set(ranges), (sorted(landed), sorted(ranges))
    counts: dict[str, int] = {}
    for place, parts in ranges.items():
        at = parts[0].first
        lost = {ordinal for hole in holes.get(place, ()) for ordinal in range(hole.first, hole.end)}
        there = landed.get(place, {})
        for part in parts:
            assert part.first == at, f"ranges of {place} do not tile: {parts}"
            at = part.end
            if settled:
                assert part.settled_end == part.end, f"{place} has something pending: {part}"
            for ordinal in range(part.first, part.settled_end):
                if ordinal not in lost:
                    offsets = there[ordinal]
                    assert len(offsets) == 1
                    assert part.offset_end < 0 or offsets[0] < part.offset_end
        assert all(parts[0].first <= ordinal < at for ordinal in there)
        assert not lost & set(there)
        counts[place[0]] = counts.get(place[0], 0) + len(there)
    for intake in told.intakes(topic):
        assert intake.accepted == sum(part.end - part.first for part in intake.ranges)
        outcomes = [
            one
            for one in told.outcomes(topic)
            if (one.incarnation, one.minute, one.era) == (intake.incarnation, intake.minute, intake.era)
        ]
        gone = sum(hole.end - hole.first for hole in intake.holes)
        if settled:
            assert sum(one.delivered for one in outcomes) == intake.accepted - gone
            if not gone:
                assert sum(one.bytes for one in outcomes) == intake.bytes
    return counts
