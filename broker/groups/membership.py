"""A consumer group of the classic protocol: its members, generation and assignments."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ..log.error_codes import ErrorCode


class GroupState(Enum):
    """State of a group, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True)
class GroupMember:
    """One consumer."""

    name: str
    instance: str | None
    """Group instance id, which outlives the process (KIP-345)."""

    session_timeout_s: float
    rebalance_timeout_s: float
    protocols: list[tuple[str, bytes]]
    last_heartbeat_at: float
    """Seconds."""

    joined: bool = True
    """Whether it has joined the next generation."""

    assignment: bytes = b""

    def metadata(self, protocol: str) -> bytes:
        """Return the metadata that the member sent for a protocol."""
        return dict(self.protocols).get(protocol, b"")


@dataclass(slots=True)
class ClassicGroup:
    """The members of a group and the state of their rebalance."""

    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, GroupMember] = field(default_factory=dict)
    pending_members: set[str] = field(default_factory=set)
    """Member ids given to consumers that have not rejoined with them yet (KIP-394)."""

    deadline: float = 0.0
    """End of the join phase: members that have not joined by then are removed (seconds)."""

    empty_since_ms: int | None = None
    """Time of day when the last member left."""

    # Identity

    def validate_member(self, name: str, instance: str | None, generation: int | None = None) -> ErrorCode:
        """Return why a request is not from a member of this generation, or NONE."""
        holder = self.member_by_instance(instance)
        if holder is not None and holder.name != name:
            return ErrorCode.FENCED_INSTANCE_ID
        if name not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        stale = generation is not None and generation != self.generation
        return ErrorCode.ILLEGAL_GENERATION if stale else ErrorCode.NONE

    def member_by_instance(self, instance: str | None) -> GroupMember | None:
        """Return the member with this group instance id."""
        return next((one for one in self.members.values() if instance is not None and one.instance == instance), None)

    def supports_protocols(self, protocol_type: str, protocols: list[tuple[str, bytes]]) -> bool:
        """Return whether a consumer shares the protocol type and a protocol with all members."""
        if not protocols or not protocol_type:
            return False
        if not self.members:
            return True
        common = set.intersection(*(set(dict(one.protocols)) for one in self.members.values()))
        return protocol_type == self.protocol_type and bool(common & set(dict(protocols)))

    # Joining

    def join(self, member: GroupMember, now: float) -> None:
        """Add a consumer, or let a member rejoin."""
        self.pending_members.discard(member.name)
        self.members[member.name] = member
        if self.state is not GroupState.PREPARING_REBALANCE:
            self.rebalance(now, but=member.name)
        self.try_complete_join(now)

    def rebalance(self, now: float, *, but: str = "") -> None:
        """Start a rebalance: all members but `but` must rejoin."""
        for one in self.members.values():
            one.joined = one.name == but
        self.state = GroupState.PREPARING_REBALANCE
        self.deadline = now + max((one.rebalance_timeout_s for one in self.members.values()), default=0.0)

    def try_complete_join(self, now: float) -> bool:
        """Start a generation if all members have joined or the deadline has passed; return whether it started."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            return False
        if now >= self.deadline:
            self.members = {name: one for name, one in self.members.items() if one.joined}
        if not self.members or not all(one.joined for one in self.members.values()):
            return False
        self.generation += 1
        self.state = GroupState.COMPLETING_REBALANCE
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        self.protocol = self._select_protocol()
        for one in self.members.values():
            one.last_heartbeat_at = now
            one.joined = False
            one.assignment = b""
        return True

    def _select_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all support."""
        common = set.intersection(*(set(dict(one.protocols)) for one in self.members.values()))
        votes = [next(name for name, _ in one.protocols if name in common) for one in self.members.values()]
        return max(sorted(common), key=votes.count)

    def assign(self, assignments: dict[str, bytes], now: float) -> None:
        """Apply the leader's assignments."""
        for name, one in self.members.items():
            one.assignment = assignments.get(name, b"")
            one.last_heartbeat_at = now
        self.state = GroupState.STABLE

    # Leaving

    def leave(self, name: str, now: float, wall_ms: int) -> None:
        """Remove a member; the others rebalance."""
        _ = self.members.pop(name, None)
        if not self.members:
            self.state = GroupState.EMPTY
            self.generation += 1
            self.leader = ""
            self.empty_since_ms = wall_ms
        elif self.state is GroupState.PREPARING_REBALANCE:
            _ = self.try_complete_join(now)
        else:
            self.rebalance(now)

    def expire_members(self, now: float, wall_ms: int) -> bool:
        """Remove members whose session has expired; return whether anything changed."""
        silent = [
            one.name
            for one in self.members.values()
            if now - one.last_heartbeat_at >= one.session_timeout_s
            and not (self.state is GroupState.PREPARING_REBALANCE and one.joined)
        ]
        for name in silent:
            self.leave(name, now, wall_ms)
        return self.try_complete_join(now) or bool(silent)

    def next_deadline(self) -> float | None:
        """Return when `expire_members` may have something to do (seconds), or None."""
        ends = [one.last_heartbeat_at + one.session_timeout_s for one in self.members.values()]
        if self.state is GroupState.PREPARING_REBALANCE:
            ends.append(self.deadline)
        return min(ends, default=None)
