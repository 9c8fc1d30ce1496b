"""Requests of group members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from ..cluster.acls import AclOperation, AclResourceType
from ..cluster.node import BrokerNode
from ..cluster.responses import DelayedResponse, ImmediateResponse, RequestContext, RequestOutcome
from ..groups.membership import ClassicGroup, GroupMember, GroupState
from ..log import internal_topics
from ..log.error_codes import ErrorCode
from .coordinator import coordinator_partition_of

JOIN_KEY: Final = 11
HEARTBEAT_KEY: Final = 12
LEAVE_KEY: Final = 13
SYNC_KEY: Final = 14
NAMED_FIRST: Final = 4
"""First JoinGroup version in which a consumer gets a member id and must rejoin with it (KIP-394)."""

BY_SEVERAL: Final = 3
"""First LeaveGroup version with several members."""

SESSION_MS_MIN: Final = 1_000
SESSION_MS_MAX: Final = 1_800_000


@dataclass(frozen=True, slots=True)
class DelayedJoin:
    """A consumer that waits for the next generation."""

    name: str
    generation: int


def _group(
    node: BrokerNode, api: int, name: str, call: RequestContext, *, create: bool = False
) -> ClassicGroup | ErrorCode:
    fault = node.faults.for_partition(api, name, -1)
    if fault is not None:
        return fault.error
    if not node.authorizer.is_allowed(call.client_id, AclOperation.READ, AclResourceType.GROUP, name):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not name:
        return ErrorCode.INVALID_GROUP_ID
    home = coordinator_partition_of(node, internal_topics.OFFSETS, name, call.moment.now)
    if isinstance(home, ErrorCode):
        return home
    found = node.groups.group(home.index, name, create=create)
    return ErrorCode.UNKNOWN_MEMBER_ID if found is None else found


def join(node: BrokerNode, request: JoinGroupRequest, call: RequestContext, pending: object) -> RequestOutcome:
    """Serve JoinGroup: the response waits until all members have joined, or for the rebalance timeout."""
    group = _group(node, JOIN_KEY, request.group_id, call, create=True)
    if isinstance(group, ErrorCode):
        return ImmediateResponse(_join_error(group, request.member_id))
    if isinstance(pending, DelayedJoin):
        return _join_outcome(group, pending, call)
    error, name = _check_join(group, request, call)
    if error is not ErrorCode.NONE:
        return ImmediateResponse(_join_error(error, name))
    member = GroupMember(
        name,
        request.group_instance_id if call.version >= 5 else None,
        request.session_timeout_ms / 1000,
        (request.rebalance_timeout_ms if call.version >= 1 else request.session_timeout_ms) / 1000,
        [(one.name, bytes(one.metadata)) for one in request.protocols],
        call.moment.now,
    )
    before = group.generation
    group.protocol_type = request.protocol_type
    group.join(member, call.moment.now)
    node.changes += 1
    return _join_outcome(group, DelayedJoin(name, before), call)


def _check_join(group: ClassicGroup, request: JoinGroupRequest, call: RequestContext) -> tuple[ErrorCode, str]:
    """Return an error or NONE, and the member id under which the consumer joins."""
    name, instance = request.member_id, request.group_instance_id if call.version >= 5 else None
    if not SESSION_MS_MIN <= request.session_timeout_ms <= SESSION_MS_MAX:
        return ErrorCode.INVALID_SESSION_TIMEOUT, name
    if not group.supports_protocols(request.protocol_type, [(one.name, b"") for one in request.protocols]):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, name
    if name:
        known = name in group.members or name in group.pending_members
        fenced = group.validate_member(name, instance) is ErrorCode.FENCED_INSTANCE_ID
        error = ErrorCode.FENCED_INSTANCE_ID if fenced else ErrorCode.UNKNOWN_MEMBER_ID
        return (ErrorCode.NONE if known and not fenced else error), name
    name = f"{instance or call.client_id}-{call.moment.wall_ms:x}-{len(group.members) + len(group.pending_members)}"
    holder = group.member_by_instance(instance)
    if holder is not None:
        del group.members[holder.name]
    elif instance is None and call.version >= NAMED_FIRST:
        group.pending_members.add(name)
        return ErrorCode.MEMBER_ID_REQUIRED, name
    return ErrorCode.NONE, name


def _join_outcome(group: ClassicGroup, joining: DelayedJoin, call: RequestContext) -> RequestOutcome:
    _ = group.try_complete_join(call.moment.now)
    if joining.name not in group.members:
        return ImmediateResponse(_join_error(ErrorCode.UNKNOWN_MEMBER_ID, joining.name))
    if group.generation == joining.generation:
        return DelayedResponse(group.deadline, joining)
    leads = group.leader == joining.name
    told = [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=one.name, group_instance_id=one.instance, metadata=one.metadata(group.protocol)
        )
        for one in group.members.values()
        if leads
    ]
    return ImmediateResponse(
        JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=group.leader,
            member_id=joining.name,
            members=told,
        )
    )


def _join_error(error: ErrorCode, name: str) -> ApiMessage:
    return JoinGroupResponse(
        error_code=error, generation_id=-1, protocol_type=None, protocol_name="", leader="", member_id=name, members=[]
    )


def sync(node: BrokerNode, request: SyncGroupRequest, call: RequestContext) -> RequestOutcome:
    """Serve SyncGroup: the leader sends the assignments, the other members wait for them."""
    group = _group(node, SYNC_KEY, request.group_id, call)
    if isinstance(group, ErrorCode):
        return ImmediateResponse(_sync_error(group))
    name = request.member_id
    error = group.validate_member(name, request.group_instance_id if call.version >= 3 else None, request.generation_id)
    if error is ErrorCode.NONE and group.state is GroupState.PREPARING_REBALANCE:
        error = ErrorCode.REBALANCE_IN_PROGRESS
    if error is not ErrorCode.NONE:
        return ImmediateResponse(_sync_error(error))
    if group.state is GroupState.COMPLETING_REBALANCE and name == group.leader:
        group.assign({one.member_id: bytes(one.assignment) for one in request.assignments}, call.moment.now)
        node.changes += 1
    if group.state is GroupState.COMPLETING_REBALANCE:
        member = group.members[name]
        return DelayedResponse(member.last_heartbeat_at + member.session_timeout_s)
    return ImmediateResponse(
        SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            assignment=group.members[name].assignment,
        )
    )


def _sync_error(error: ErrorCode) -> ApiMessage:
    return SyncGroupResponse(error_code=error, protocol_type=None, protocol_name=None, assignment=b"")


def heartbeat(node: BrokerNode, request: HeartbeatRequest, call: RequestContext) -> RequestOutcome:
    """Serve Heartbeat."""
    group = _group(node, HEARTBEAT_KEY, request.group_id, call)
    if isinstance(group, ErrorCode):
        return ImmediateResponse(HeartbeatResponse(error_code=group))
    instance = request.group_instance_id if call.version >= 3 else None
    error = group.validate_member(request.member_id, instance, request.generation_id)
    if error is ErrorCode.NONE:
        group.members[request.member_id].last_heartbeat_at = call.moment.now
        error = ErrorCode.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE
    return ImmediateResponse(HeartbeatResponse(error_code=error))


def leave(node: BrokerNode, request: LeaveGroupRequest, call: RequestContext) -> RequestOutcome:
    """Serve LeaveGroup, for one member or several."""
    group = _group(node, LEAVE_KEY, request.group_id, call)
    if group is ErrorCode.UNKNOWN_MEMBER_ID:
        group = ClassicGroup()  # the group never had members
    if isinstance(group, ErrorCode):
        return ImmediateResponse(LeaveGroupResponse(error_code=group, members=[]))
    if call.version < BY_SEVERAL:
        return ImmediateResponse(
            LeaveGroupResponse(error_code=_leave_member(node, group, request.member_id, None, call), members=[])
        )
    told = [
        LeaveGroupResponse.MemberResponse(
            member_id=one.member_id,
            group_instance_id=one.group_instance_id,
            error_code=_leave_member(node, group, one.member_id, one.group_instance_id, call),
        )
        for one in request.members
    ]
    return ImmediateResponse(LeaveGroupResponse(error_code=ErrorCode.NONE, members=told))


def _leave_member(
    node: BrokerNode, group: ClassicGroup, name: str, instance: str | None, call: RequestContext
) -> ErrorCode:
    holder = group.member_by_instance(instance)
    if not name and holder is not None:
        name = holder.name
    error = group.validate_member(name, instance)
    if error is ErrorCode.NONE:
        group.leave(name, call.moment.now, call.moment.wall_ms)
        node.changes += 1
    return error
