"""Test commands, one JSON object per line; the reply to each is one JSON object on a line.

For one node (in a cluster process with `"node": N`):

    {"op": "fail_next", "api": 0, "error": "NOT_LEADER_OR_FOLLOWER", "times": 1, "topic": "t", "partition": 3, "applied": false}
    {"op": "cut_answer", "api": 0, "keep": 0, "times": 1}     do the work, send `keep` bytes of the response, close
    {"op": "drop_answer", "api": 0, "times": 1}                do the work, send nothing, keep the connection open
    {"op": "delay_answer", "api": 0, "ms": 500, "times": 1}    do the work, send the response later
    {"op": "repeat_answer", "api": 0, "times": 1}              do the work, send the response twice
    {"op": "close_at", "bytes": 100}                           close the next new connection after this many bytes
    {"op": "clear"}                                            remove the pending rules
    {"op": "expire_producers", "after_ms": 0}                  forget producers whose last batch is older than this
    {"op": "throttle", "client": "c", "bytes_per_s": 1000}     throttle a client; without the number: stop throttling
    {"op": "allow", "client": "*", "operation": "WRITE", "resource": "TOPIC", "name": "t", "prefix": false}
    {"op": "deny", …}                                          the same fields; permissions are checked from now on
    {"op": "allow_all"}                                        stop checking permissions

For one node, or for all nodes of a cluster process:

    {"op": "limit", "name": "producer_id_expiration_ms", "value": 1000}
    {"op": "hold_markers", "transactional_id": "x", "topic": "t", "partition": 0}   do not write transaction markers
    {"op": "lose_markers", …, "times": 1}                      never write them, but count them as written
    {"op": "free_markers"}                                     end both; held markers are written
    {"op": "coordinator", "transactional_id": "x"}             or "group"; the reply has topic, partition and node

`topic` and `partition` may be omitted (any); with `applied` true the node does the work and still returns the error.

For a cluster process:

    {"op": "kill" | "stop" | "pause" | "resume" | "hold" | "release", "node": N}
    {"op": "start", "node": N, "saved": true}
    {"op": "cut", "node": N, "from": M}                        M = -1: the controller
    {"op": "heal"}
    {"op": "delay_news", "node": N, "ms": 1000}
    {"op": "clock", "node": N, "ahead_ms": 60000}
    {"op": "elect", "topic": "t", "partition": 0, "node": N, "unclean": false}
    {"op": "reassign", "topic": "t", "partition": 0, "replicas": [1, 2]}
    {"op": "recreate", "topic": "t"}
    {"op": "expire_records", "topic": "t", "partition": 0, "offset": 100}
    {"op": "state", "topic": "t", "partition": 0}              the reply has leader, epoch, replicas, in_sync
"""

from __future__ import annotations

import json
from typing import Final, cast

from .cluster.acls import CLUSTER_NAME, AclBinding, AclOperation, AclResourceType, TooManyAclsError
from .cluster.controller import PlacementError
from .cluster.faults import (
    CloseAt,
    CutAnswer,
    DelayAnswer,
    FailNext,
    MarkerFault,
    MarkerRule,
    MarkerRules,
    RepeatAnswer,
    TooManyRulesError,
)
from .cluster.node import BrokerNode, BrokerNodeLimits
from .cluster.quotas import QuotaError
from .log.error_codes import ErrorCode
from .log.internal_topics import OFFSETS, TRANSACTIONS, internal_partition_of
from .log.ports import BrokerTime
from .replication.replicated_cluster import NoNodeError, ReplicatedCluster

TRANSACTION_VERSION_MAX: Final = 2
LINE_BYTES_MAX: Final = 65_536
OK: Final = b'{"ok": true}\n'
Command = dict[str, object]


class CommandError(ValueError):
    """A line is not a command."""


FAILURES: Final = (CommandError, TooManyRulesError, TooManyAclsError, QuotaError, NoNodeError, PlacementError)


def execute_on_node(node: BrokerNode, line: bytes, moment: BrokerTime) -> bytes:
    """Execute one command line on a node and return the reply line."""
    try:
        command = _parsed(line)
        if command.get("op") == "coordinator":
            return _coordinator(command, node.node_id)
        if not _execute_marker_command(node.marker_rules, command):
            _execute_node_command(node, command, moment)
    except FAILURES as error:
        return _failed(error)
    return OK


def execute_on_cluster(cluster: ReplicatedCluster, line: bytes, moment: BrokerTime) -> bytes:
    """Execute one command line on a cluster and return the reply line."""
    try:
        command = _parsed(line)
        if command.get("op") == "state":
            return _state(cluster, command)
        if command.get("op") == "coordinator":
            name, index = _internal_partition(command)
            return _coordinator(command, cluster.controller.placements[cluster.key(name, index)].leader)
        if _execute_marker_command(cluster.marker_rules, command):
            cluster.run_until_stable(moment)
        elif not _execute_cluster_command(cluster, command, moment):
            _execute_node_command(cluster.node(_number(command, "node", -1)), command, moment)
    except FAILURES as error:
        return _failed(error)
    return OK


def _parsed(line: bytes) -> Command:
    try:
        command: object = json.loads(line)
    except ValueError as error:
        raise CommandError(f"not JSON: {error}") from error
    if not isinstance(command, dict):
        raise CommandError("not a JSON object")
    return cast("Command", command)


def _failed(error: Exception) -> bytes:
    return json.dumps({"ok": False, "error": str(error)}).encode() + b"\n"


def _execute_node_command(node: BrokerNode, command: Command, moment: BrokerTime) -> None:
    times = _number(command, "times", 1)
    match command:
        case {"op": "fail_next", "api": int(api), "error": str(name)}:
            node.faults.add(_fail_next(api, name, command))
        case {"op": "cut_answer", "api": int(api)}:
            node.faults.add(CutAnswer(api, times, _number(command, "keep", 0)))
        case {"op": "drop_answer", "api": int(api)}:
            node.faults.add(CutAnswer(api, times, close=False))
        case {"op": "delay_answer", "api": int(api), "ms": int(delay)}:
            node.faults.add(DelayAnswer(api, times, delay / 1000))
        case {"op": "repeat_answer", "api": int(api)}:
            node.faults.add(RepeatAnswer(api, times))
        case {"op": "close_at", "bytes": int(size)} if size > 0:
            node.faults.add(CloseAt(size))
        case {"op": "clear"}:
            node.faults.clear()
        case {"op": "expire_producers", "after_ms": int(after)}:
            node.expire_producers(moment, after)
        case {"op": "throttle", "client": str(client)}:
            rate = _number(command, "bytes_per_s", -1) if "bytes_per_s" in command else None
            node.quotas.set(client, rate)
        case {"op": "allow" | "deny", "client": str(), "operation": str(), "resource": str()}:
            node.authorizer.add(_grant(command))
        case {"op": "limit", "name": str(name), "value": int(value)}:
            node.limits = _with_limit(node.limits, name, value)
        case {"op": "allow_all"}:
            node.authorizer.clear()
        case _:
            raise CommandError("not a command that is known")


def _execute_marker_command(rules: MarkerRules, command: Command) -> bool:
    """Execute a command about transaction markers; return False for any other command."""
    match command:
        case {"op": "hold_markers"}:
            rules.add(_marker_rule(MarkerFault.HOLD, command))
        case {"op": "lose_markers"}:
            rules.add(_marker_rule(MarkerFault.LOSE, command))
        case {"op": "free_markers"}:
            rules.clear()
        case _:
            return False
    return True


def _marker_rule(what: MarkerFault, command: Command) -> MarkerRule:
    transactional_id, topic, partition = (command.get(key) for key in ("transactional_id", "topic", "partition"))
    named = all(one is None or isinstance(one, str) for one in (transactional_id, topic))
    if not named or not (partition is None or isinstance(partition, int)):
        raise CommandError("transactional_id and topic are strings, partition is a number")
    times = _number(command, "times", 1)
    return MarkerRule(what, times, cast("str | None", transactional_id), cast("str | None", topic), partition)


def _internal_partition(command: Command) -> tuple[str, int]:
    """Return the internal topic and partition that hold the state of a transactional id or group."""
    match command:
        case {"transactional_id": str(name)}:
            return TRANSACTIONS, internal_partition_of(name)
        case {"group": str(name)}:
            return OFFSETS, internal_partition_of(name)
        case _:
            raise CommandError("coordinator needs a transactional_id or a group")


def _coordinator(command: Command, node: int) -> bytes:
    name, index = _internal_partition(command)
    return json.dumps({"ok": True, "topic": name, "partition": index, "node": node}).encode() + b"\n"


def _execute_cluster_command(cluster: ReplicatedCluster, command: Command, moment: BrokerTime) -> bool:
    """Execute a command for a cluster; return False for any other command."""
    match command:
        case {"op": "kill", "node": int(node)}:
            cluster.kill(node, moment)
        case {"op": "stop", "node": int(node)}:
            cluster.stop(node, moment)
        case {"op": "start", "node": int(node)}:
            cluster.start(node, moment, saved=_flag(command, "saved", default=True))
        case {"op": "pause" | "resume" as what, "node": int(node)}:
            cluster.pause(node, moment, paused=what == "pause")
        case {"op": "hold" | "release" as what, "node": int(node)}:
            cluster.pause_replication(node, moment, held=what == "hold")
        case {"op": "cut", "node": int(node), "from": int(other)}:
            cluster.cut_link(node, other, moment)
        case {"op": "heal"}:
            cluster.heal(moment)
        case {"op": "delay_news", "node": int(node), "ms": int(delay)}:
            cluster.delay_metadata(node, delay / 1000)
        case {"op": "clock", "node": int(node), "ahead_ms": int(ahead)}:
            cluster.set_clock(node, ahead)
        case {"op": "limit", "name": str(name), "value": int(value)}:
            cluster.set_limits(_with_limit(cluster.limits, name, value))
        case {"op": "elect", "topic": str(topic), "partition": int(index), "node": int(node)}:
            cluster.elect(topic, index, node, moment, unclean=_flag(command, "unclean", default=False))
        case {"op": "reassign", "topic": str(topic), "partition": int(index), "replicas": list(replicas)}:
            cluster.reassign(topic, index, _numbers(cast("list[object]", replicas)), moment)
        case {"op": "expire_records", "topic": str(topic), "partition": int(index), "offset": int(offset)}:
            cluster.expire_records(topic, index, offset, moment)
        case {"op": "recreate", "topic": str(topic)}:
            cluster.recreate(topic, moment)
        case _:
            return False
    return True


def _state(cluster: ReplicatedCluster, command: Command) -> bytes:
    match command:
        case {"topic": str(topic), "partition": int(index)}:
            told = cluster.controller.placements[cluster.key(topic, index)]._asdict()
            return json.dumps({"ok": True} | told).encode() + b"\n"
        case _:
            raise CommandError("state needs a topic and a partition")


def _with_limit(limits: BrokerNodeLimits, name: str, value: int) -> BrokerNodeLimits:
    """Return `limits` with one value changed; as in Kafka, check intervals cannot change while a broker runs."""
    match name:
        case "default_partitions" if value > 0:
            return limits._replace(default_partitions=value)
        case "log_bytes_max" if value >= 0:
            return limits._replace(log_bytes_max=value)
        case "producer_id_expiration_ms" if value > 0:
            return limits._replace(producer_id_expiration_ms=value)
        case "transaction_version" if 0 <= value <= TRANSACTION_VERSION_MAX:
            return limits._replace(transaction_version=value)
        case "marker_delay_ms" if value >= 0:
            return limits._replace(marker_delay_ms=value)
        case "coordinator_load_ms" if value >= 0:
            return limits._replace(coordinator_load_ms=value)
        case "transactional_id_expiration_ms" if value > 0:
            return limits._replace(transactional_id_expiration_ms=value)
        case "offsets_retention_ms" if value > 0:
            return limits._replace(offsets_retention_ms=value)
        case _:
            raise CommandError(f"no limit {name} that can be {value}")


def _grant(command: Command) -> AclBinding:
    operation, resource = str(command["operation"]), str(command["resource"])
    if operation not in AclOperation.__members__ or resource not in AclResourceType.__members__:
        raise CommandError("no such operation or resource")
    kind = AclResourceType[resource]
    name = command.get("name", CLUSTER_NAME if kind is AclResourceType.CLUSTER else "*")
    if not isinstance(name, str):
        raise CommandError("name is a string")
    prefix = _flag(command, "prefix", default=False)
    return AclBinding(str(command["client"]), AclOperation[operation], kind, name, prefix, deny=command["op"] == "deny")


def _fail_next(api: int, name: str, rest: Command) -> FailNext:
    if name not in ErrorCode.__members__:
        raise CommandError(f"unknown error {name}")
    topic = rest.get("topic")
    partition = rest.get("partition")
    applied = rest.get("applied", False)
    if not (topic is None or isinstance(topic, str)) or not isinstance(applied, bool):
        raise CommandError("topic is a string, applied a boolean")
    if not (partition is None or isinstance(partition, int)):
        raise CommandError("partition is a number")
    return FailNext(api, ErrorCode[name], _number(rest, "times", 1), topic, partition, applied)


def _number(rest: Command, name: str, default: int) -> int:
    value = rest.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CommandError(f"{name} is a number")
    return value


def _flag(rest: Command, name: str, *, default: bool) -> bool:
    value = rest.get(name, default)
    if not isinstance(value, bool):
        raise CommandError(f"{name} is a boolean")
    return value


def _numbers(values: list[object]) -> tuple[int, ...]:
    found = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    if len(found) != len(values):
        raise CommandError("replicas are numbers")
    return tuple(found)
