"""What all parts of the lease table share: the leases, the log, the outboxes, and the few moves that every part makes."""

from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...wire.messages import Cut, Load, Pace, Revoke, RouterMessage
from ..ledger.entries import ControlEntry, CutsEntry, Lsn
from ..ledger.partition_state import Ledger
from ..ledger.slices import Log, SliceEnded
from .backlog import Backlog, Piece, Proof
from .handout import HandOut
from .lease import Alarm, Lease
from .refused_batches import ParkRequest, request
from .shard_slots import Seats
from .states import HOLDING, Block, BlockedBy, Errand, LeaseState, Locate, Park, Step

_PARKED_BEFORE: Final = "refused by Kafka before the daemon's last start; the dead letters have its words"


class LeaseLimits(NamedTuple):
    """`seats`: shard processes. `recall_ms`: a shard that does not give a lease back for so long is killed. `retry_ms`,
    `retry_max_ms`: first and longest wait before a blocked partition is tried again. `buffer_bytes`: of one shard.
    `batch_bytes`: no batch of several slices is larger."""

    seats: int
    shard_return_ms: int
    recall_ms: int
    retry_ms: int
    retry_max_ms: int
    buffer_bytes: int
    batch_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Notice:
    """Something for the log: `event` in words, ordinals [first, end)."""

    event: str
    topic: str
    index: int
    first: int
    end: int
    text: str


class LeaseTable:
    """State shared by grants, outcomes and returns. `wall_offset_ms`: wall time in ms is `now` x 1000 + this."""

    def __init__(self, ledger: Ledger, log: Log, limits: LeaseLimits, *, now: float, wall_offset_ms: int) -> None:
        self.ledger = ledger
        self.log = log
        self.limits = limits
        self.wall_offset_ms = wall_offset_ms
        self.expiration_ms = 24 * 3_600_000
        self.seats = Seats(limits.seats, limits.shard_return_ms / 1000, now)
        self.handout = HandOut(self.send, self.tell_pace_now)
        self.leases: dict[int, Lease] = {}
        self.consider: dict[int, Lease] = {}
        self.rows_awaited: list[Lease] = []
        self.paces_awaited: list[tuple[Lsn, int, Lease]] = []
        self.synced = Lsn(0)
        self.wanted = Lsn(0)
        self.timed: dict[int, Lease] = {}
        self.now = now
        self.pushed = 0
        self.stopping = False
        self.outbox: list[tuple[int, RouterMessage]] = []
        self.ended: list[SliceEnded] = []
        self.park_requests: list[ParkRequest] = []
        self.kill: list[tuple[int, str]] = []
        self.alarms: dict[int, Alarm] = {}
        self.notices: list[Notice] = []
        self.stale_topics: set[str] = set()
        self.loads: dict[int, Load] = {}
        self.past: Counter[str] = Counter()
        """What shards that have ended had told of themselves."""
        self.counters: Counter[str] = Counter()

    def record(self, entry: ControlEntry) -> Lsn:
        """Put an entry into the log and the ledger."""
        place = self.log.append(entry)
        self.ledger.apply(entry)
        return place

    def send(self, seat: int, message: RouterMessage) -> None:
        self.outbox.append((seat, message))

    def wall_ms(self) -> int:
        return int(self.now * 1000) + self.wall_offset_ms

    def lease_of(self, number: int) -> Lease:
        """The lease of a partition, made when it is first asked for."""
        found = self.leases.get(number)
        if found is None:
            state = self.ledger.by_number[number]
            found = self.leases[number] = Lease(state, Backlog(state.index, state.mark))
            # Of what was parked in an earlier start only the place is known here.
            found.backlog.park([Piece(hole.first, hole.count, _PARKED_BEFORE) for hole in state.holes])
        return found

    def await_sync(self, place: Lsn) -> None:
        self.wanted = max(self.wanted, place)

    def tell_pace_now(self, lease: Lease, pace: str) -> None:
        """Tell the holder how wide it may send."""
        lease.pace, lease.pace_told_at = pace, self.now
        durable = lease.durable
        self.send(lease.seat, Pace(lease.number, lease.generation, pace, durable.anchor, durable.log_start))

    # --- moves of one lease ------------------------------------------------------------------------------------------

    def recall(self, lease: Lease, errand: Errand) -> None:
        """Call a held lease back; of one already called back only the errand changes."""
        if lease.state is LeaseState.HELD:
            self.handout.drop(lease)
            lease.move(LeaseState.RECALLED)
            lease.recall_until = self.now + self.limits.recall_ms / 1000
            self.send(lease.seat, Revoke(lease.number, lease.generation))
            self.timed[lease.number] = lease
            self.counters["revokes"] += 1
        lease.errand = errand

    def fault(self, seat: int, reason: str) -> None:
        """A shard broke the rules: it is killed, and nothing it says afterwards counts."""
        self.kill.append((seat, reason))
        self.counters["shards_killed"] += 1
        self.dying(seat)

    def dying(self, seat: int) -> None:
        """Its leases end when it is reaped and its journal is read."""
        _ = self.seats.failing(seat)
        for lease in self.leases.values():
            if lease.seat == seat and lease.state in {LeaseState.HELD, LeaseState.RECALLED}:
                self.handout.drop(lease)
                lease.move(LeaseState.DYING)

    def returned(self, lease: Lease, cuts: list[Cut], *, facts: bool) -> None:
        """The lease is back: what may have been sent goes into the spool, then its errand is done."""
        assert lease.state in HOLDING
        durable = lease.durable
        errand, lease.errand = lease.errand, None
        if isinstance(errand, Locate) and lease.search is not None:
            # The trial was refused: it is not in the log, and no cut.
            cuts = []
        self.know_cuts(lease, cuts, None if facts else lease.sent_end)
        lease.backlog.rewind()
        lease.flush_told = 0
        if isinstance(errand, Park):
            lease.move(LeaseState.SETTLING)
            lease.step = Step.LETTER
            self.park_requests.append(request(durable, errand, lease.backlog))
        elif isinstance(errand, Block):
            self.block(lease, errand)
        else:
            self.unplace(lease)

    def know_cuts(self, lease: Lease, cuts: list[Cut], unknown_end: int | None) -> None:
        """Write what is known of the open cuts. `unknown_end`: any ordinal below it may have been sent in any cut. Once the
        range is uncertain it only grows, until the mark has passed it (LOC-9)."""
        durable = lease.durable
        ends = [cut.first + cut.count for cut in cuts]
        unknown = durable.unknown_through
        if unknown_end is not None and unknown_end > durable.mark:
            unknown = max([unknown_end - 1, *(end - 1 for end in ends), -1 if unknown is None else unknown])
        elif unknown is not None:
            unknown = max([unknown, *(end - 1 for end in ends)])
        facts = unknown is None
        known = cuts if facts else []
        if lease.search is not None and unknown != lease.search.through:
            lease.search = None
        if (known, facts, unknown) != (durable.cuts, durable.cuts_are_facts, durable.unknown_through):
            _ = self.record(CutsEntry(lease.number, known, facts, unknown))

    def unplace(self, lease: Lease) -> None:
        """Nobody holds it; it is granted as soon as it can be."""
        lease.step = lease.block = None
        lease.retry_at = None
        lease.move(LeaseState.UNPLACED)
        self.consider[lease.number] = lease

    def block(self, lease: Lease, block: Block) -> None:
        """Keep everything, raise the alarm, let the others go on."""
        lease.move(LeaseState.BLOCKED)
        lease.search = None
        lease.block = block
        lease.retry_at = None
        if block.retry:
            wait_ms = min(self.limits.retry_ms << min(lease.tries, 20), self.limits.retry_max_ms)
            lease.retry_at = self.now + wait_ms / 1000
            lease.tries += 1
            self.timed[lease.number] = lease
        self.alarm(lease, block.why, block.text, block.first, block.end)
        self.counters["blocks"] += 1

    def alarm(self, lease: Lease, why: BlockedBy, text: str, first: int, end: int) -> None:
        """Raise it, or renew its text; it began when it was first raised."""
        durable = lease.durable
        known = self.alarms.get(lease.number)
        since = known.since if known is not None else self.now
        self.alarms[lease.number] = Alarm(lease.number, durable.topic, durable.index, since, why, text, first, end)
        if known is None or known.why is not why:
            self.notices.append(Notice(why.value, durable.topic, durable.index, first, end, text))
            if why is BlockedBy.GAP:
                self.counters["gap_records"] += end - first

    def progress(self, lease: Lease) -> None:
        """Kafka took something: no alarm stands any more."""
        lease.tries = 0
        if lease.number in self.alarms:
            del self.alarms[lease.number]

    def possible_duplicates(self, lease: Lease, first: int, end: int, text: str) -> None:
        """Records that may be in the log twice are counted and named, never silent."""
        durable = lease.durable
        self.counters["possible_duplicates"] += end - first
        self.notices.append(Notice("possible_duplicates", durable.topic, durable.index, first, end, text))

    def advance(self, lease: Lease, mark: int, proof: Proof | None) -> None:
        """The mark moved: what ended is counted and handed to the router."""
        ended = lease.backlog.advance(mark, proof)
        records = parked = 0
        for one in ended:
            records += one.slice.count
            if one.parked:
                parked += sum(count for _, count, _ in one.parked)
        if ended and lease.backlog.waiting:
            self.handout.eased(lease)
        self.counters["records_parked"] += parked
        self.counters["records_delivered"] += records - parked
        self.ended += ended
