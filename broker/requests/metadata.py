"""Cluster requests: Metadata, DescribeCluster, InitProducerId and FindCoordinator."""

from __future__ import annotations

import contextlib
from typing import Final, TypeAlias

from kafka.protocol.admin.cluster import DescribeClusterRequest, DescribeClusterResponse
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from ..cluster.acls import AclOperation, AclResourceType
from ..cluster.leadership import NO_LEADER
from ..cluster.node import NO_ID, BrokerNode, OnlySelf
from ..cluster.responses import ImmediateResponse, RequestContext, RequestOutcome
from ..log.error_codes import ErrorCode
from ..log.internal_topics import NAMES, OFFSETS, TRANSACTIONS
from ..log.ports import ControllerUnreachableError
from ..log.topics import BrokerTopic, name_is_legal
from .coordinator import find_coordinator_node
from .transactions import INIT_PRODUCER_ID_KEY, init_transactional, is_authorized

METADATA_KEY: Final = 3
NULL_NAMES: Final = 12
"""First Metadata version whose responses may omit a topic's name."""

FIND_COORDINATOR_KEY: Final = 10
MANY_KEYS: Final = 4
"""First FindCoordinator version with several keys."""

GROUP: Final = 0
TRANSACTION: Final = 1
_TopicAnswer: TypeAlias = MetadataResponse.MetadataResponseTopic
_PartitionAnswer: TypeAlias = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition
_Coordinator: TypeAlias = FindCoordinatorResponse.Coordinator


def metadata(node: BrokerNode, request: MetadataRequest, call: RequestContext) -> RequestOutcome:
    """Serve Metadata: by name, by topic id, or for all topics that the client may describe."""
    version = call.version
    live = set(node.metadata_cache.live())
    if request.topics is None or (version == 0 and not request.topics):
        answers = [_topic_answer(node, topic) for topic in node.topics() if _visible(node, topic.name, call)]
    else:
        create = node.limits.auto_create_topics and (version < 4 or request.allow_auto_topic_creation)
        answers = [_requested_topic(node, entry, call, create=create) for entry in request.topics]
    return ImmediateResponse(
        MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=peer.node_id, host=peer.host, port=peer.port)
                for peer in node.peers
                if peer.node_id in live
            ],
            cluster_id=node.cluster_id,
            # Every node can create topics, so each names itself, which is certainly up.
            controller_id=node.node_id,
            topics=answers,
        )
    )


def _visible(node: BrokerNode, name: str, call: RequestContext) -> bool:
    return node.authorizer.is_allowed(call.client_id, AclOperation.DESCRIBE, AclResourceType.TOPIC, name)


def _requested_topic(
    node: BrokerNode, entry: MetadataRequest.MetadataRequestTopic, call: RequestContext, *, create: bool
) -> _TopicAnswer:
    if entry.name is None or (entry.topic_id and entry.topic_id != NO_ID):
        topic = node.topic_by_id(entry.topic_id)
        name = None if call.version >= NULL_NAMES else ""
        if topic is None or not _visible(node, topic.name, call):
            return _TopicAnswer(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=entry.topic_id, partitions=[]
            )
        return _topic_answer(node, topic)
    if not _visible(node, entry.name, call):
        forbidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return _TopicAnswer(error_code=forbidden, name=entry.name, topic_id=NO_ID, partitions=[])
    topic = node.topic(entry.name)
    if topic is None and create and name_is_legal(entry.name):
        with contextlib.suppress(ControllerUnreachableError):
            _ = node.create_topic(entry.name, node.limits.default_partitions, (), call.moment)
        topic = node.topic(entry.name)
    if topic is None:
        legal = name_is_legal(entry.name)
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC
        return _TopicAnswer(error_code=error, name=entry.name, topic_id=NO_ID, partitions=[])
    fault = node.faults.for_partition(METADATA_KEY, topic.name, -1)
    if fault is not None:
        return _TopicAnswer(error_code=fault.error, name=topic.name, topic_id=topic.id, partitions=[])
    return _topic_answer(node, topic)


def _topic_answer(node: BrokerNode, topic: BrokerTopic) -> _TopicAnswer:
    live = set(node.metadata_cache.live())
    return _TopicAnswer(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in NAMES,
        partitions=[_partition(node, topic, index, live) for index in range(topic.partitions)],
    )


def _partition(node: BrokerNode, topic: BrokerTopic, index: int, live: set[int]) -> _PartitionAnswer:
    placement = node.metadata_cache.placement(topic, index)
    lost = placement.leader == NO_LEADER or placement.leader not in live
    return _PartitionAnswer(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if lost else ErrorCode.NONE,
        partition_index=index,
        leader_id=NO_LEADER if lost else placement.leader,
        leader_epoch=placement.epoch,
        replica_nodes=list(placement.replicas),
        isr_nodes=list(placement.in_sync),
        offline_replicas=[one for one in placement.replicas if one not in live],
    )


def describe_cluster(node: BrokerNode, _request: DescribeClusterRequest) -> RequestOutcome:
    """Serve DescribeCluster."""
    return ImmediateResponse(
        DescribeClusterResponse(
            cluster_id=node.cluster_id,
            controller_id=node.node_id,
            brokers=[
                DescribeClusterResponse.DescribeClusterBroker(broker_id=peer.node_id, host=peer.host, port=peer.port)
                for peer in node.peers
                if peer.node_id in node.metadata_cache.live()
            ],
        )
    )


def init_producer_id(node: BrokerNode, request: InitProducerIdRequest, call: RequestContext) -> RequestOutcome:
    """Serve InitProducerId; without a transactional id return a new producer id with epoch 0."""
    if request.transactional_id is not None:
        return init_transactional(node, request, call)
    error = ErrorCode.NONE
    producer_id = None
    fault = node.faults.for_partition(INIT_PRODUCER_ID_KEY, "", -1)
    if fault is not None:
        error = fault.error
    elif not node.authorizer.may_produce_idempotently(call.client_id):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    else:
        producer_id = node.new_producer_id()
        if producer_id is None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if producer_id is None:
        return ImmediateResponse(InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1))
    return ImmediateResponse(InitProducerIdResponse(error_code=error, producer_id=producer_id, producer_epoch=0))


def find_coordinator(node: BrokerNode, request: FindCoordinatorRequest, call: RequestContext) -> RequestOutcome:
    """Serve FindCoordinator: return the leader of the internal topic's partition for a key."""
    if call.version >= MANY_KEYS:
        found = [_coordinator(node, key, request.key_type, call) for key in request.coordinator_keys]
        return ImmediateResponse(FindCoordinatorResponse(coordinators=found))
    one = _coordinator(node, request.key, request.key_type if call.version >= 1 else GROUP, call)
    return ImmediateResponse(
        FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )
    )


def _coordinator(node: BrokerNode, key: str, kind: int, call: RequestContext) -> _Coordinator:
    error, why = _coordinator_error(node, key, kind, call)
    if error is ErrorCode.NONE:
        name = OFFSETS if kind == GROUP else TRANSACTIONS
        peer = find_coordinator_node(node, name, key, call.moment)
        if peer is not None:
            return _Coordinator(key=key, node_id=peer.node_id, host=peer.host, port=peer.port, error_code=error)
        error, why = ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads its partition now"
    return _Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=why)


def _coordinator_error(node: BrokerNode, key: str, kind: int, call: RequestContext) -> tuple[ErrorCode, str]:
    """Return why the broker does not look up the coordinator (error and text), or NONE."""
    fault = node.faults.for_partition(FIND_COORDINATOR_KEY, key, -1)
    if fault is not None:
        return fault.error, "on command"
    if kind == GROUP and not node.authorizer.is_allowed(
        call.client_id, AclOperation.DESCRIBE, AclResourceType.GROUP, key
    ):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED, "no right to the group"
    if kind == TRANSACTION and not is_authorized(node, call, AclOperation.DESCRIBE, key):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "no right to the transactional id"
    if kind == TRANSACTION and len(node.peers) > 1 and isinstance(node.reachable_nodes, OnlySelf):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, "nodes in processes of their own have no transactions"
    return (ErrorCode.NONE, "") if kind in {GROUP, TRANSACTION} else (ErrorCode.INVALID_REQUEST, "no such kind of key")
