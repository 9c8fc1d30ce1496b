"""The router's place where there is no router: one lease table, whose grants, moves and answers are given in this process.

What the lease table says is acted on at once: DONE becomes outcomes and PACE, REFUSED fails records and begins a new epoch, HINT
asks for metadata, GAP is confirmed, HALT waits.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ...wire.messages import (
    FIRST,
    OPEN,
    Anchor,
    Done,
    DoneItem,
    Flush,
    Gap,
    Halt,
    Hint,
    Pace,
    Refused,
    Revoked,
    ShardMessage,
    SliceRef,
    Unreadable,
)
from ..accumulator.batch import UnboundedJournal
from ..accumulator.partition_queue import BatchRules
from ..accumulator.slice_accumulator import Accumulator
from ..metadata.cluster import Cluster, ClusterChange
from ..protocol.error_codes import CLUSTER_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION, error_name
from ..records.sequence_ranges import Span, merged, without
from ..sender.modes import Limits
from ..sender.partitions import CreditRule, LeaseTable
from .assignment import Notice, Placing
from .deadlines import Deadlines
from .delivery_timeout import Expiry, tries
from .gap_confirmation import Confirming, HintTold
from .outcomes import Failure, Kind, Outcome
from .partition_state import Partition
from .record_errors import refusals_of

_NO_CREDIT: Final = CreditRule(1, 1)
"""Slices of this process's own memory are handed out as they come."""
_PACE_AGAIN_S: Final = 60.0
_FATAL: Final = frozenset({UNSUPPORTED_VERSION, CLUSTER_AUTHORIZATION_FAILED})
_CLOSED: Final = Failure(Kind.CLOSED, -1, "PRODUCER_CLOSED", "the producer was closed before this was sent")


class JoinedLimits(NamedTuple):
    """Bounds of a producer in one process. `buffer_bytes`: encoded batches of all nodes."""

    table: Limits
    delivery_timeout_s: float
    buffer_bytes: int
    idempotent: bool = True


class Joined:
    """Sequencer, grants and outcomes over one `LeaseTable`, whose `wall` is to be told the time.

    `trouble_with` tells why requests cannot be sent to a node, None: they can; only messages about expired records say so.
    """

    def __init__(
        self,
        limits: JoinedLimits,
        accumulator: Accumulator,
        rules_of: Callable[[str], BatchRules],
        *,
        trouble_with: Callable[[int], str | None],
        gate: Callable[[Partition], bool] | None = None,
    ) -> None:
        """`gate`: see `Placing`."""
        self.limits: Final = limits
        self.table: Final = LeaseTable(limits.table, accumulator, rules_of, _NO_CREDIT)
        self.journal: Final = UnboundedJournal()
        self.failure: Failure | None = None
        """Why nothing is taken any more."""
        self._placing: Final = Placing(
            self.table, limits.buffer_bytes, self._listen, idempotent=limits.idempotent, gate=gate
        )
        self._open: set[Partition] = set()
        self._deadlines: Final = Deadlines(limits.delivery_timeout_s)
        self._outcomes: Final[list[Outcome]] = []
        self._hints: Final[list[HintTold]] = []
        self._close_at: float | None = None
        self._haunted: set[Partition] = set()
        """Those with ghosts."""
        self._undecided: Final[deque[Refused | Gap | Halt | Unreadable]] = deque()
        """What leases wait for, in the order it was said."""
        self._confirming: Final = Confirming(self.table, self._placing, self._hints)
        self._expiry: Final = Expiry(
            self.table,
            self._placing,
            self._confirming,
            self._fail,
            self._outcomes,
            timeout_s=limits.delivery_timeout_s,
            trouble_with=trouble_with,
        )

    # --- told by the shell -------------------------------------------------------------------------------------------

    def number_of(self, topic: str, index: int) -> int:
        """The partition's number, made on first use."""
        return self._placing.partition(topic, index).number

    def topic_of(self, number: int) -> tuple[str, int]:
        """Topic and index of a partition number."""
        found = self._placing.partitions[number]
        return found.topic, found.index

    @property
    def partitions(self) -> Sequence[Partition]:
        """All of them, by number."""
        return self._placing.partitions

    def submit(
        self,
        partition: int,
        segment: int,
        length: int,
        first: int,
        count: int,
        created_ms: int,
        max_ts: int,
        *,
        now: float,
    ) -> None:
        """A sealed chunk, created at `created_ms` (CLOCK_MONOTONIC); `first` follows the last one's end."""
        part = self._placing.partitions[partition]
        ref = SliceRef(partition, part.generation, segment, 0, length, first, count, created_ms, max_ts)
        part.submit(ref)
        self._open.add(part)
        if self.failure is not None:
            self._fail(part, [(part.mark, part.end)], self.failure)
            return
        self._deadlines.watch(part)
        self._pass_on(part, ref, now)

    def _pass_on(self, part: Partition, ref: SliceRef, now: float) -> None:
        if part.held:
            self.table.hand(ref, now=now)
        else:
            self._placing.reconsider(part)

    @property
    def wants_producer_id(self) -> bool:
        """An id is to be asked for: the first, or one for a partition whose epochs are used up."""
        return self.failure is None and self._placing.wants_producer_id

    def producer_id_known(self, producer_id: int, epoch: int, *, now: float) -> None:
        """The brokers gave an id. A new one begins at epoch 0."""
        assert epoch == 0, f"a new producer id with epoch {epoch}"
        self._placing.producer_id_known(producer_id)
        self._placing.place(now)

    def producer_id_refused(self, code: int) -> None:
        """There is no permission for an id yet: what waits for it fails. It is asked for again (IDM-1)."""
        name = error_name(code)
        text = f"{name}: no producer id was given; the producer goes on asking"
        for part in [one for one in self._open if not one.rows]:
            self._fail(part, [(part.mark, part.end)], Failure(Kind.REFUSED, code, name, text))

    def cluster_changed(self, cluster: Cluster, change: ClusterChange, *, now: float) -> None:
        """Nodes, leaders or topics are others. Where nodes are, the connections are to follow the table's."""
        self._placing.cluster_changed(cluster, change, now)
        self._placing.place(now)

    def flush(self, *, now: float, nodes: frozenset[int] | None = None) -> None:
        """What was submitted does not linger; `nodes`: only what these lead."""
        through = [(part.number, part.end - 1) for part in self._open if nodes is None or part.leader in nodes]
        if through:
            self.table.apply(Flush(through), now=now)

    def close(self, deadline: float, *, now: float) -> None:
        """Go on until everything is resolved or the deadline is over; then everything left fails."""
        self._close_at = deadline
        self._placing.flushing = True
        self.flush(now=now)

    def abort(self, failure: Failure, *, now: float) -> None:
        """Everything left fails, and what comes later too. What may be in the log is told so."""
        if self.failure is None:
            self.failure = failure
        unsure = failure._replace(kind=Kind.MAY_BE_WRITTEN, message=f"{failure.message}; it may have been written")
        for part in sorted(self._open, key=lambda one: one.number):
            ends = [cut.first + cut.count for cut in part.cuts]
            lease = self.table.leases.get(part.number)
            if lease is not None:
                ends = [one.end for one in lease.unresolved if one.flight or one.doubtful]
                self._placing.recall(part, now)
            self._fail(part, [(part.mark, max([part.mark, part.doubtful_to, *ends]))], unsure)
            self._fail(part, [(part.mark, part.end)], failure)
        self._placing.blocked.clear()

    # --- rounds ------------------------------------------------------------------------------------------------------

    def upkeep(self, *, now: float) -> None:
        """Act on what the lease table says, then on time. To be called before the connections send: what expires in a round is
        not sent in it."""
        self._listen(now)
        self._decide(now)
        for part in self._deadlines.expired(now):
            self._expire(part, self._deadlines.end_of(part, now), now)
            self._deadlines.watch(part)
        if self._haunted:
            self._haunted = {part for part in self._haunted if part.ghosts}
            for part in self._haunted:
                self._lay(part, now)
        self._confirming.go_on(now)
        placing = self._placing
        if placing.blocked:
            for part in [one for one in placing.blocked if one.retry_at is not None and now >= one.retry_at]:
                placing.unblock(part)
        if placing.has_work:
            placing.place(now)
        if self._close_at is not None and self._open and (now >= self._close_at or self._has_only_ghosts()):
            self.abort(_CLOSED, now=now)

    def _expire(self, part: Partition, end: int, now: float) -> None:
        if self.limits.idempotent:
            self._expiry.expire(part, end, now)
            self._haunted.add(part)
        else:
            self._expiry.expire_plain(part, end, now)

    def next_deadline(self, now: float) -> float | None:
        """When `upkeep` has something to do; in the past: at once."""
        if self._placing.has_work or self.table.outbox.has_words or self._undecided or self.table.replicas.has_answers:
            return now
        wanted = [self._deadlines.next_deadline(), self._close_at if self._open else None]
        if self._placing.blocked:
            wanted += [part.retry_at for part in self._placing.blocked]
        wanted.append(self._confirming.next_deadline())
        return min((at for at in wanted if at is not None), default=None)

    def take_outcomes(self) -> list[Outcome]:
        """What was decided since the last call."""
        if not self._outcomes:
            return []
        taken = list(self._outcomes)
        self._outcomes.clear()
        return taken

    def take_hints(self) -> list[HintTold]:
        """What answers told of leaders."""
        if not self._hints:
            return []
        taken = list(self._hints)
        self._hints.clear()
        return taken

    def take_notices(self) -> list[Notice]:
        """What a person should know."""
        taken, self._placing.notices = self._placing.notices, []
        return taken

    def _has_only_ghosts(self) -> bool:
        """Nobody waits for anything any more."""
        return not any(without((part.mark, part.end), merged([*part.ghosts, *part.holes])) for part in self._open)

    @property
    def idle(self) -> bool:
        """Nothing is unresolved, ghosts included."""
        return not self._open

    @property
    def completing(self) -> bool:
        """A transaction is to end: nothing lingers."""
        return False

    def topics_in_use(self) -> set[str]:
        """Topics with something unresolved."""
        return {part.topic for part in self._open}

    # --- what the lease table says -----------------------------------------------------------------------------------

    def _listen(self, now: float) -> None:
        """What is a fact counts at once, in the order in which it was said. Decisions wait: they take leases back, which must not
        overtake what these have said already."""
        for said in self.table.outbox.take():
            match said.message:
                case Refused() if not self.limits.idempotent:
                    part = self._placing.partitions[said.message.partition]
                    if part.held and part.generation == said.message.generation:
                        self._refused(part, said.message, now)
                case Refused() | Gap() | Halt() | Unreadable():
                    self._undecided.append(said.message)
                case _:
                    self._heard(said.message, now)

    def _decide(self, now: float) -> None:
        while self._undecided:
            message = self._undecided.popleft()
            part = self._placing.partitions[message.partition]
            if part.held and part.generation == message.generation:
                self._stuck(part, message, now)

    def _heard(self, message: ShardMessage, now: float) -> None:
        match message:
            case Done():
                for item in message.items:
                    self._done(item, now)
            case Revoked():
                part = self._placing.partitions[message.partition]
                part.held = False
                part.cuts = list(message.cuts)
                self._placing.reconsider(part)
            case Hint():
                topic, index = self.topic_of(message.partition)
                self._hints.append(HintTold(topic, index, message.leader, message.leader_epoch))
            case _:
                raise AssertionError(f"a lease table said {type(message).__name__}")

    def _done(self, item: DoneItem, now: float) -> None:
        part = self._placing.partitions[item.partition]
        if not part.held or item.generation != part.generation or item.first + item.count <= part.mark:
            return
        told = part.delivered if self.limits.idempotent else part.taken
        self._outcomes.extend(told(item.first, item.first + item.count, item.base_offset, item.log_append_ms))
        if self.limits.idempotent and item.base_offset >= 0:
            time_ms = item.log_append_ms if item.log_append_ms >= 0 else item.time_ms
            part.anchor = Anchor(item.base_offset, time_ms, self.table.wall.ms(now), item.leader_epoch)
        moved = item.log_start > part.log_start
        part.log_start = max(part.log_start, item.log_start)
        part.failures = 0
        self._confirming.over(part)
        if part.pace != OPEN or moved or now - part.pace_told_at >= _PACE_AGAIN_S:
            part.pace = self._placing.pace(part, now)
            part.pace_told_at = now
            pace = Pace(part.number, part.generation, part.pace, part.anchor, part.log_start)
            self.table.apply(pace, now=now)
        self._resolved(part)

    def _resolved(self, part: Partition) -> None:
        if not part.slices:
            self._open.discard(part)
            if not part.wants_id:
                self._placing.blocked.discard(part)
            self._confirming.over(part)

    def _stuck(self, part: Partition, message: Refused | Gap | Halt | Unreadable, now: float) -> None:
        """The lease waits for what is decided here."""
        match message:
            case Refused():
                self._refused(part, message, now)
            case Gap():
                self._gap(part, message, now)
            case Halt():
                if message.code in _FATAL:
                    text = f"{error_name(message.code)}: {message.message}"
                    self.abort(Failure(Kind.FATAL, message.code, error_name(message.code), text), now=now)
                    return
                self._wait(part, "partition_halted", message.message, now)
            case Unreadable():
                raise AssertionError(f"records in memory are not what was put there: {message.what}")

    def _refused(self, part: Partition, refused: Refused, now: float) -> None:
        """Records fail, the others go on under a new epoch (ERR-3)."""
        whole = not self.limits.idempotent
        refusals = refusals_of(refused, topic=part.topic, index=part.index, whole=whole)
        if whole:
            for refusal in refusals:
                self._fail(part, [refusal.span], refusal.failure)
            return
        lease = self.table.leases[part.number]
        if refused.ambiguous and lease.pace != FIRST:
            if not lease.absent:
                self._wait(part, "refusal_unsettled", refused.message, now)
                return
            gap = Gap(part.number, part.generation, lease.leader_epoch, refused.message)
            self._take_back(part, now)
            if not self._confirming.is_confirmed(part, gap, now):
                return
            refusals = refusals_of(refused._replace(ambiguous=False), topic=part.topic, index=part.index, whole=False)
        self._placing.recall(part, now)
        for refusal in refusals:
            self._fail(part, [refusal.span], refusal.failure)
        self._bump(part)

    def _gap(self, part: Partition, gap: Gap, now: float) -> None:
        """All unresolved batches were refused as out of order. Twice, and nothing of them is in the log: what was acknowledged may
        be lost, and what is unresolved goes on in a new epoch (GAP-3)."""
        self._take_back(part, now)
        if self._confirming.is_confirmed(part, gap, now):
            self._bump(part)

    def _bump(self, part: Partition) -> None:
        """A new epoch: nothing of the old one can be in the log any more, so its ghosts end too."""
        self._fail(part, list(part.ghosts), _CLOSED)
        if part.bump():
            self._placing.unblock(part)
        else:
            self._placing.block(part, None)
        self._resolved(part)

    def _wait(self, part: Partition, event: str, text: str, now: float) -> None:
        """Nothing can be done here: tried again after a while, until the records expire."""
        self._take_back(part, now)
        if part.failures == 0:
            self._placing.note(event, part, part.sent_to, text)
        self._placing.block(part, now + self.table.limits.backoff.wait_s(part.failures, 0.5))
        part.failures += 1
        self._give_up_ghosts(part)

    def _lay(self, part: Partition, now: float) -> None:
        """Ghosts that nothing will ever tell of are given up: those of a partition that waits, and a refused one with nothing
        behind it."""
        lease = self.table.leases.get(part.number)
        if lease is None:
            if part in self._placing.blocked:
                self._give_up_ghosts(part)
        elif lease.is_settling and not without((part.mark, part.end), merged([*part.ghosts, *part.holes])):
            self._take_back(part, now)
            self._give_up_ghosts(part)

    def _take_back(self, part: Partition, now: float) -> None:
        """What the lease knew of its tries is told when its records expire."""
        part.attempts, part.last_error = tries(self.table.leases[part.number])
        self._placing.recall(part, now)

    def _give_up_ghosts(self, part: Partition) -> None:
        """Where nothing tells what became of them, and nobody waits for them any more: the partition goes on without them, under
        another producer id. None of them is sent again."""
        if not part.cuts or without((part.mark, part.sent_to), part.ghosts):
            return
        self._placing.note("ghosts_given_up", part, part.sent_to, part.last_error)
        part.cuts = []
        self._confirming.over(part)
        part.wants_id = True
        self._fail(part, list(part.ghosts), _CLOSED)
        self._placing.block(part, None)

    # --- records that fail -------------------------------------------------------------------------------------------

    def _fail(self, part: Partition, spans: list[Span], failure: Failure) -> None:
        self._outcomes.extend(part.leave_out(spans, failure))
        self._resolved(part)
