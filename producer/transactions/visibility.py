"""Has a transaction ended in its partitions? EndTxn is answered before markers are written, and a marker can get lost (KAFKA-20734):
a partition counts as done when its last stable offset has passed what was written, or when its leader knows no open transaction
of ours.

Until then nothing more of the same producer goes to the partition, whether the transaction was committed or aborted: the next marker
would end the old transaction with the outcome of the new one (TRX-3).
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from ..protocol.backoff import Backoff
from .requests import Part

UNKNOWN_OFFSET: Final = -1
"""Of a partition that was sent to and never answered."""


class LookKind(Enum):
    """How a partition is looked at; both at its leader."""

    STABLE = auto()
    """ListOffsets, isolation read_committed, timestamp latest: the last stable offset. Needs the right DESCRIBE."""
    OPEN = auto()
    """DescribeProducers: whose transactions are open. Needs the right READ."""


class Look(NamedTuple):
    """One question about one partition. The shell may put those for the same leader and of the same kind into one request."""

    kind: LookKind
    part: Part


class StableTold(NamedTuple):
    """The last stable offset: the first that a read_committed reader does not get."""

    code: int
    last_stable: int = -1


class OpenTold(NamedTuple):
    """Producer ids with a transaction open in the partition (`current_txn_start_offset` >= 0)."""

    code: int
    producer_ids: frozenset[int] = frozenset()


LookAnswer = StableTold | OpenTold


class _Unseen:
    def __init__(self, producer_id: int, last_offset: int, now: float) -> None:
        self.producer_id: Final = producer_id
        self.last_offset: Final = last_offset
        self.since: Final = now
        self.due = now
        self.asked = False
        self.attempts = 0
        self.forbidden = False
        """Its leader does not tell us of producers."""
        self.alarmed = False
        self.next_kind = LookKind.OPEN if last_offset == UNKNOWN_OFFSET else LookKind.STABLE


class Visibility:
    """The partitions in which a transaction of ours may not have ended yet."""

    def __init__(self, look: Backoff, *, ask_leader_after_s: float, hanging_after_s: float) -> None:
        self._look: Final = look
        self._ask_leader_after_s: Final = ask_leader_after_s
        self._hanging_after_s: Final = hanging_after_s
        self._unseen: Final[dict[Part, _Unseen]] = {}

    def __contains__(self, part: Part) -> bool:
        return part in self._unseen

    def __len__(self) -> int:
        return len(self._unseen)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those not seen yet, in the order they were written to."""
        return tuple(self._unseen)

    def expect(self, producer_id: int, last_offsets: Mapping[Part, int], now: float) -> None:
        """A transaction was ended: look at these from now on."""
        for part, offset in last_offsets.items():
            assert part not in self._unseen, (
                f"{part} was sent to before the end of its last transaction was seen (TRX-3)"
            )
            self._unseen[part] = _Unseen(producer_id, offset, now)

    def take_looks(self, now: float) -> list[Look]:
        """What to ask now. Each must be answered or lost."""
        looks: list[Look] = []
        for part, unseen in self._unseen.items():
            if not unseen.asked and now >= unseen.due:
                unseen.asked = True
                looks.append(Look(unseen.next_kind, part))
        return looks

    def answered(self, look: Look, answer: LookAnswer, *, now: float, chance: float) -> bool:
        """True: the partition's records are visible, or as visible as we can make them. `chance` in [0, 1)."""
        unseen = self._unseen.get(look.part)
        if unseen is None:
            return False
        match answer:
            case StableTold(code=0, last_stable=last_stable):
                seen = last_stable > unseen.last_offset
            case OpenTold(code=0, producer_ids=producer_ids):
                # Another producer's transaction holds the last stable offset back: our marker is there.
                seen = unseen.producer_id not in producer_ids
            case OpenTold(code=code):
                unseen.forbidden = code in _NEVER_TOLD
                # With nothing to go by there is nothing to wait for.
                seen = unseen.forbidden and unseen.last_offset == UNKNOWN_OFFSET
            case _:
                seen = False
        if seen:
            del self._unseen[look.part]
            return True
        self._later(unseen, look.kind, now, chance, answered=True)
        return False

    def lost(self, look: Look, *, now: float, chance: float) -> None:
        """No answer, or nobody to ask."""
        unseen = self._unseen.get(look.part)
        if unseen is not None:
            self._later(unseen, look.kind, now, chance, answered=False)

    def _later(self, unseen: _Unseen, kind: LookKind, now: float, chance: float, *, answered: bool) -> None:
        unseen.asked = False
        may_ask_leader = now - unseen.since >= self._ask_leader_after_s and not unseen.forbidden
        if answered and kind is LookKind.STABLE and may_ask_leader and unseen.last_offset != UNKNOWN_OFFSET:
            # Both in turn: commits beside another producer's long transaction wait for nothing else.
            unseen.next_kind = LookKind.OPEN
            unseen.due = now
            return
        unseen.due = now + self._look.wait_s(unseen.attempts, chance)
        unseen.attempts += 1
        if unseen.last_offset != UNKNOWN_OFFSET:
            unseen.next_kind = LookKind.STABLE

    def hanging(self, now: float, tell: Callable[[str], None]) -> None:
        """Tell once of each partition that is not visible for too long."""
        for (topic, index), unseen in self._unseen.items():
            if not unseen.alarmed and now - unseen.since >= self._hanging_after_s:
                unseen.alarmed = True
                end = "" if unseen.last_offset == UNKNOWN_OFFSET else f" through offset {unseen.last_offset}"
                tell(
                    f"hanging transaction: {topic}-{index} was written{end} by producer id "
                    f"{unseen.producer_id}, the transaction has ended, and readers of committed records do not get past it; "
                    "nothing more of this producer is sent to it"
                )

    def next_deadline(self) -> float | None:
        """When `take_looks` or `hanging` have something to do next."""
        times = [unseen.due for unseen in self._unseen.values() if not unseen.asked]
        times += [unseen.since + self._hanging_after_s for unseen in self._unseen.values() if not unseen.alarmed]
        return min(times, default=None)


_NEVER_TOLD: Final = frozenset({29, 35})
"""TOPIC_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION."""
