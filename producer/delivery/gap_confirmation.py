"""Drives gap checks: asks the replicas and starts second passes. The rules are in `producer/sender/gap_check.py`."""

from typing import Final, NamedTuple

from ...wire.messages import ProbeRefused
from ..sender.gap_check import GapCheck
from ..sender.modes import LeaderCheck
from ..sender.partitions import PartitionTable
from .assignment import PartitionAssigner
from .partition_state import PartitionState


class LeaderUpdate(NamedTuple):
    """A response named another leader; `leader` -1: it showed only that the metadata is stale."""

    topic: str
    index: int  # type: ignore[assignment]
    leader: int
    leader_epoch: int


class GapConfirmation:
    """Unconfirmed gaps, by partition number. Appends newer leaders and requests to refresh metadata to `hints`."""

    def __init__(self, table: PartitionTable, placing: PartitionAssigner, hints: list[LeaderUpdate]) -> None:
        self._table: Final = table
        self._placing: Final = placing
        self._hints: Final = hints
        self._checks: dict[int, GapCheck] = {}

    def is_confirmed(self, part: PartitionState, gap: ProbeRefused, now: float) -> bool:
        """Call this after a pass over all unresolved batches was refused and the lease is back. The first time, start a
        check and return False. The second time under the same leader epoch, return True: none of the batches is in the
        log, and acknowledged records may be lost (GAP-3)."""
        check = self._checks.pop(part.number, None)
        if check is not None and check.in_second_pass and check.leader_epoch == gap.leader_epoch:
            text = f"refused twice by the leader of epoch {gap.leader_epoch}"
            self._placing.add_alarm("gap_confirmed", part, part.sent_to, text)
            return True
        text = f"the leader of epoch {gap.leader_epoch} refuses every unresolved batch: {gap.error}"
        self._placing.add_alarm("gap", part, part.sent_to, text)
        others = self._placing.replicas_of(part) - {part.leader}
        self._checks[part.number] = GapCheck(part.topic, part.index, gap.leader_epoch, others, now=now)
        self._table.replica_queries.request(others, part.topic)
        self._hints.append(LeaderUpdate(part.topic, part.index, -1, -1))
        self._placing.block(part, None)
        return False

    def is_checking(self, part: PartitionState) -> bool:
        """Whether the partition has an unconfirmed gap."""
        return part.number in self._checks

    def cancel(self, part: PartitionState) -> None:
        """End the check: there is no gap, or nothing is unresolved any more."""
        _ = self._checks.pop(part.number, None)

    def advance(self, now: float) -> None:
        """Process the replicas' answers, and start the second passes that are due."""
        for node, answer in self._table.replica_queries.answers():
            for check in self._checks.values():
                newer = check.receive_metadata(node, answer)
                if newer is not None:
                    self._hints.append(LeaderUpdate(check.topic, check.index, *newer))
        for number, check in list(self._checks.items()) if self._checks else ():
            part = self._placing.partitions[number]
            if part.needs_producer_id:
                # The partition continues under another producer id, so there is no gap to confirm.
                del self._checks[number]
            elif part.leader_epoch > check.leader_epoch:
                # A newer leader: the refusals of the old one prove nothing.
                del self._checks[number]
                self._placing.unblock(part)
            elif not check.in_second_pass and self._may_try_again(check, number, now):
                self._try_again(part, check, now)

    def next_deadline(self) -> float | None:
        """When the next pause ends."""
        if not self._checks:
            return None
        ends = [
            check.ready_at(self._table.connection_lost_at.get(number))
            for number, check in self._checks.items()
            if not check.in_second_pass and self._is_quiescent(check, number)
        ]
        return min(ends, default=None)

    def _may_try_again(self, check: GapCheck, number: int, now: float) -> bool:
        return self._is_quiescent(check, number) and now >= check.ready_at(self._table.connection_lost_at.get(number))

    def _is_quiescent(self, check: GapCheck, number: int) -> bool:
        return not check.unanswered_replicas and not self._table.stale_in_flight.get(number)

    def _try_again(self, part: PartitionState, check: GapCheck, now: float) -> None:
        check.in_second_pass = True
        self._placing.unblock(part)
        self._placing.grant_pending(now)
        lease = self._table.partitions.get(part.number)
        if lease is not None:
            # The check carries the newest epoch, so a deposed leader answers with an error.
            lease.require_check(LeaderCheck.LOG_START)
