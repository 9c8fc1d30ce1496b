"""The judge: ledgers on one side, what a reader found in the topic on the other, figures as the answer.

It knows nothing of Penstock. A figure that must be zero is never computed from the daemon's own words.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from .ledger import Kind, Ledger, Level
from .records import Found, RecordId, id_of, record_of

INDEX_BITS: Final = 20
EXAMPLES_MAX: Final = 12


@dataclass(slots=True)
class Figures:
    """What one run showed. `wrong` names every figure that is not as it must be."""

    sent: int = 0
    acknowledged: dict[Level, int] = field(default_factory=lambda: dict.fromkeys(Level, 0))
    failed: int = 0
    unknown: int = 0
    found: int = 0
    lost: dict[Level, int] = field(default_factory=lambda: dict.fromkeys(Level, 0))
    """Acknowledged at this level or above, and not in the topic."""
    dup: int = 0
    reorder: int = 0
    phantom: int = 0
    corrupt: int = 0
    zombie_nack: int = 0
    offset_mismatch: int = 0
    misnumbered: int = 0
    """Records under a daemon's id that another record has, or that names another partition, or found twice under two ids."""
    answered_twice: int = 0
    """Records with more than one outcome."""
    longest_wait_s: float = 0.0
    """The longest time from a call to its acknowledgement."""
    max_ack_gap_s: float = 0.0
    """The longest time in which a client waited for something and no answer of any kind came."""
    examples: list[str] = field(default_factory=list[str])

    def wrong(self) -> list[str]:
        """The figures that must be zero and are not, with examples; empty when all is well."""
        figures = {
            **{f"lost[{level.name.lower()}]": count for level, count in self.lost.items()},
            "dup": self.dup,
            "reorder": self.reorder,
            "phantom": self.phantom,
            "corrupt": self.corrupt,
            "zombie_nack": self.zombie_nack,
            "offset_mismatch": self.offset_mismatch,
            "misnumbered": self.misnumbered,
            "answered_twice": self.answered_twice,
        }
        found = [f"{name} = {count}" for name, count in figures.items() if count]
        return [*found, *self.examples] if found else []

    def assert_clean(self) -> None:
        """Every record acknowledged, nothing wrong. Raise AssertionError that says what, with examples."""
        wrong = self.wrong()
        assert not wrong, "\n".join(wrong)
        assert (self.unknown, self.failed, self.found) == (0, 0, self.sent), self.summary()

    def summary(self) -> str:
        """One line for a log."""
        acknowledged = " ".join(f"{level.name.lower()} {count}" for level, count in self.acknowledged.items() if count)
        lost = max(self.lost.values())
        return (
            f"sent {self.sent}, acknowledged {acknowledged or 0}, failed {self.failed}, unknown {self.unknown}, found {self.found}, "
            f"lost {lost}, doubled {self.dup}, out of order {self.reorder}, phantom {self.phantom}, corrupt {self.corrupt}, "
            f"longest wait {self.longest_wait_s:.2f} s, longest gap {self.max_ack_gap_s:.2f} s"
        )

    def example(self, text: str) -> None:
        """Keep a few cases for the message."""
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(text)


class _Seen:
    """Where the records of one client were found."""

    __slots__ = ("first", "more", "newest")

    def __init__(self) -> None:
        # Ids and places are packed into integers: a million records fit into memory.
        self.first: dict[int, tuple[int, int]] = {}
        self.more: dict[int, list[tuple[int, int]]] = {}
        self.newest: dict[int, int] = {}

    def places(self, packed: int) -> list[tuple[int, int]]:
        """Every (partition, offset) at which a record was found."""
        first = self.first.get(packed)
        return [] if first is None else [first, *self.more.get(packed, [])]


class _Ids:
    """The ids that a daemon gave, a bit each."""

    def __init__(self) -> None:
        self._bits: dict[tuple[int, int], bytearray] = {}

    def add(self, incarnation: int, origin: int, ordinal: int) -> bool:
        """False: it was there before."""
        bits = self._bits.setdefault((incarnation, origin), bytearray())
        place, bit = ordinal >> 3, 1 << (ordinal & 7)
        if place >= len(bits):
            bits.extend(bytes(place - len(bits) + 1 + (place >> 2)))
        new = not bits[place] & bit
        bits[place] |= bit
        return new


def _pack(frame: int, index: int) -> int:
    return frame << INDEX_BITS | index


def judge(ledgers: Sequence[Ledger], found: Iterable[Found]) -> Figures:
    """Compare what the clients were told with what is in the topic.

    `found` gives each partition in offset order; all ledgers are of clients that wrote to that topic.
    """
    figures = Figures(sent=sum(ledger.sent for ledger in ledgers))
    by_client = {ledger.client: ledger for ledger in ledgers}
    assert len(by_client) == len(ledgers), "two ledgers of one client"
    seen = {client: _Seen() for client in by_client}
    ids = _Ids()
    for record in found:
        figures.found += 1
        name = _known(figures, by_client, record)
        if name is not None:
            _number(figures, ids, seen[name.client], name, record)
            _place(figures, seen[name.client], name, record)
    for ledger in ledgers:
        _compare(figures, ledger, seen[ledger.client])
        _waits(figures, ledger)
    return figures


def _known(figures: Figures, ledgers: dict[str, Ledger], record: Found) -> RecordId | None:
    """The record's id when it was sent; counts phantoms and damage."""
    place = f"{record.partition}@{record.offset}"
    name = id_of(record.value, record.headers)
    if name is None:
        figures.corrupt += 1
        figures.example(f"corrupt: no id at {place}: {record.value!r:.80}")
        return None
    ledger = ledgers.get(name.client)
    frame = ledger.frames.get(name.frame) if ledger is not None else None
    if ledger is None or frame is None or name.row >= frame.count:
        figures.phantom += 1
        figures.example(f"phantom: {name} at {place} was never sent")
        return None
    sent = record_of(name, ledger.shape)
    same_time = sent.timestamp_ms is None or sent.timestamp_ms == record.timestamp_ms
    if (sent.key, sent.value, sent.headers) != (record.key, record.value, record.headers) or not same_time:
        figures.corrupt += 1
        figures.example(f"corrupt: {name} at {place} is not what was sent: {record!r:.200}")
    return name


def _number(figures: Figures, ids: _Ids, seen: _Seen, name: RecordId, record: Found) -> None:
    """One record has one id, and one id is one record's."""
    if record.numbered is None:
        return
    is_new = ids.add(*record.numbered)
    if is_new == (_pack(name.frame, name.row) in seen.first) or record.numbered[1] != record.partition:
        figures.misnumbered += 1
        figures.example(f"misnumbered: {name} at {record.partition}@{record.offset} is {record.numbered}")


def _place(figures: Figures, seen: _Seen, name: RecordId, record: Found) -> None:
    """Note where a record is; counts doubles, and first occurrences that come after a later record."""
    packed = _pack(name.frame, name.row)
    place = (record.partition, record.offset)
    if packed in seen.first:
        figures.dup += 1
        figures.example(f"dup: {name} at {seen.first[packed]} and {place}")
        seen.more.setdefault(packed, []).append(place)
        return
    seen.first[packed] = place
    if packed < seen.newest.get(record.partition, -1):
        figures.reorder += 1
        newest = seen.newest[record.partition]
        figures.example(f"reorder: {name} at {place} after {newest >> INDEX_BITS}:{newest & (1 << INDEX_BITS) - 1}")
    else:
        seen.newest[record.partition] = packed


def _compare(figures: Figures, ledger: Ledger, seen: _Seen) -> None:
    """Hold every outcome of a client against where its records are."""
    answered: Counter[int] = Counter()
    for number, outcome in ledger.outcomes():
        for step in range(outcome.count):
            packed = _pack(number, outcome.first + step)
            answered[packed] += 1
            places = seen.places(packed)
            name = f"{ledger.client}:{number}:{outcome.first + step}"
            if outcome.kind is Kind.OK:
                figures.acknowledged[outcome.level] += 1
                if not places:
                    for level in Level:
                        figures.lost[level] += level <= outcome.level
                    figures.example(f"lost: {name} was acknowledged at {outcome.level.name.lower()}")
                elif outcome.offset >= 0 and (outcome.partition, outcome.offset + step) not in places:
                    figures.offset_mismatch += 1
                    told = (outcome.partition, outcome.offset + step)
                    figures.example(f"offset_mismatch: {name} is at {places}, told {told}")
            elif outcome.kind is Kind.FAIL:
                figures.failed += 1
                if places:
                    figures.zombie_nack += 1
                    figures.example(f"zombie_nack: {name} was refused ({outcome.code}) and is at {places}")
            else:
                figures.unknown += 1
    figures.unknown += ledger.sent - len(answered)
    figures.answered_twice += sum(count > 1 for count in answered.values())


def _waits(figures: Figures, ledger: Ledger) -> None:
    """The longest wait of a call, and the longest silence while something was outstanding."""
    events: list[tuple[float, int]] = []
    for frame in ledger.frames.values():
        events.append((frame.sent_at, frame.count))
        for outcome in frame.outcomes:
            events.append((outcome.at, -outcome.count))
            if outcome.kind is Kind.OK:
                figures.longest_wait_s = max(figures.longest_wait_s, outcome.at - frame.sent_at)
    outstanding = 0
    since = 0.0
    for at, change in sorted(events):
        if outstanding == 0:
            since = at
        elif change < 0:
            figures.max_ack_gap_s = max(figures.max_ack_gap_s, at - since)
            since = at
        outstanding += change
