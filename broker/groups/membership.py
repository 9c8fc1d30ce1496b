"""A group of consumers that share partitions (the classic protocol): who is in it, in which generation, and who gets what."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ..log.error_codes import ErrorCode


class Phase(Enum):
    """Where a group stands."""

    EMPTY = "Empty"
    JOINING = "PreparingRebalance"
    SYNCING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True)
class Member:
    """One consumer."""

    name: str
    instance: str | None
    """Its own name, which outlives the process (KIP-345)."""

    session_s: float
    rebalance_s: float
    protocols: list[tuple[str, bytes]]
    heard_at: float
    """Seconds."""

    joined: bool = True
    """Whether it asked to be in the next generation."""

    assignment: bytes = b""

    def metadata(self, protocol: str) -> bytes:
        """What it said for a protocol."""
        return dict(self.protocols).get(protocol, b"")


@dataclass(slots=True)
class Group:
    """Members and what they agreed on."""

    phase: Phase = Phase.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    expected: set[str] = field(default_factory=set)
    """Names that were given to consumers which have not come back with them yet (KIP-394)."""

    deadline: float = 0.0
    """Of the joining: who did not ask by then is out (seconds)."""

    emptied_ms: int | None = None
    """Time of day when the last member left."""

    # Who is who

    def error_of(self, name: str, instance: str | None, generation: int | None = None) -> ErrorCode:
        """Why a request is not one of a member of this generation, or NONE."""
        holder = self.holder(instance)
        if holder is not None and holder.name != name:
            return ErrorCode.FENCED_INSTANCE_ID
        if name not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        stale = generation is not None and generation != self.generation
        return ErrorCode.ILLEGAL_GENERATION if stale else ErrorCode.NONE

    def holder(self, instance: str | None) -> Member | None:
        """The member that has an instance's name."""
        return next((one for one in self.members.values() if instance is not None and one.instance == instance), None)

    def fits(self, protocol_type: str, protocols: list[tuple[str, bytes]]) -> bool:
        """Whether a consumer speaks what all members speak."""
        if not protocols or not protocol_type:
            return False
        if not self.members:
            return True
        common = set.intersection(*(set(dict(one.protocols)) for one in self.members.values()))
        return protocol_type == self.protocol_type and bool(common & set(dict(protocols)))

    # Joining

    def join(self, member: Member, now: float) -> None:
        """Take a consumer in, or let a member ask again."""
        self.expected.discard(member.name)
        self.members[member.name] = member
        if self.phase is not Phase.JOINING:
            self.rebalance(now, but=member.name)
        self.complete_if_all(now)

    def rebalance(self, now: float, *, but: str = "") -> None:
        """Ask all members to join again."""
        for one in self.members.values():
            one.joined = one.name == but
        self.phase = Phase.JOINING
        self.deadline = now + max((one.rebalance_s for one in self.members.values()), default=0.0)

    def complete_if_all(self, now: float) -> bool:
        """Begin a generation if everybody asked for it, or the time is up; whether it began."""
        if self.phase is not Phase.JOINING:
            return False
        if now >= self.deadline:
            self.members = {name: one for name, one in self.members.items() if one.joined}
        if not self.members or not all(one.joined for one in self.members.values()):
            return False
        self.generation += 1
        self.phase = Phase.SYNCING
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        self.protocol = self._chosen()
        for one in self.members.values():
            one.heard_at = now
            one.joined = False
            one.assignment = b""
        return True

    def _chosen(self) -> str:
        """What most members like best of what all of them speak."""
        common = set.intersection(*(set(dict(one.protocols)) for one in self.members.values()))
        votes = [next(name for name, _ in one.protocols if name in common) for one in self.members.values()]
        return max(sorted(common), key=votes.count)

    def assign(self, assignments: dict[str, bytes], now: float) -> None:
        """Take what the leader decided."""
        for name, one in self.members.items():
            one.assignment = assignments.get(name, b"")
            one.heard_at = now
        self.phase = Phase.STABLE

    # Leaving

    def leave(self, name: str, now: float, wall_ms: int) -> None:
        """Let a member go; the others share anew."""
        _ = self.members.pop(name, None)
        if not self.members:
            self.phase = Phase.EMPTY
            self.generation += 1
            self.leader = ""
            self.emptied_ms = wall_ms
        elif self.phase is Phase.JOINING:
            _ = self.complete_if_all(now)
        else:
            self.rebalance(now)

    def drop_silent(self, now: float, wall_ms: int) -> bool:
        """Let members go that were not heard of for too long; whether anything changed."""
        silent = [
            one.name
            for one in self.members.values()
            if now - one.heard_at >= one.session_s and not (self.phase is Phase.JOINING and one.joined)
        ]
        for name in silent:
            self.leave(name, now, wall_ms)
        return self.complete_if_all(now) or bool(silent)

    def next_deadline(self) -> float | None:
        """When `drop_silent` may have something to do (seconds)."""
        ends = [one.heard_at + one.session_s for one in self.members.values()]
        if self.phase is Phase.JOINING:
            ends.append(self.deadline)
        return min(ends, default=None)
