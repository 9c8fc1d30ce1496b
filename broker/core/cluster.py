"""Questions about the cluster: versions, nodes and topics, producer ids, coordinators."""

from __future__ import annotations

import contextlib
import zlib
from typing import Final, TypeAlias

from kafka.protocol.admin.cluster import DescribeClusterRequest, DescribeClusterResponse
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from .errors import ErrorCode
from .node import NO_ID, Node, Peer
from .outcomes import Answer, Call, Outcome
from .permissions import Operation, Resource
from .placement import NO_LEADER
from .ports import CutOffError
from .topics import Topic, name_is_legal

METADATA_KEY: Final = 3
INIT_PRODUCER_ID_KEY: Final = 22
NULL_NAMES: Final = 12
"""First Metadata version whose answers may leave a topic's name out."""

GROUP: Final = 0
_TopicAnswer: TypeAlias = MetadataResponse.MetadataResponseTopic
_PartitionAnswer: TypeAlias = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition
_Coordinator: TypeAlias = FindCoordinatorResponse.Coordinator


def metadata(node: Node, request: MetadataRequest, call: Call) -> Outcome:
    """Serve Metadata: by name, by topic id, or all topics that the client may know of."""
    version = call.version
    live = set(node.placements.live())
    if request.topics is None or (version == 0 and not request.topics):
        answers = [_described(node, topic) for topic in node.topics() if _visible(node, topic.name, call)]
    else:
        create = node.limits.auto_create_topics and (version < 4 or request.allow_auto_topic_creation)
        answers = [_asked(node, entry, call, create=create) for entry in request.topics]
    return Answer(
        MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=peer.node_id, host=peer.host, port=peer.port)
                for peer in node.peers
                if peer.node_id in live
            ],
            cluster_id=node.cluster_id,
            # Every node can make topics, so each names itself: that one is up for sure.
            controller_id=node.node_id,
            topics=answers,
        )
    )


def _visible(node: Node, name: str, call: Call) -> bool:
    return node.permissions.allow(call.client_id, Operation.DESCRIBE, Resource.TOPIC, name)


def _asked(node: Node, entry: MetadataRequest.MetadataRequestTopic, call: Call, *, create: bool) -> _TopicAnswer:
    if entry.name is None or (entry.topic_id and entry.topic_id != NO_ID):
        topic = node.topic_by_id(entry.topic_id)
        name = None if call.version >= NULL_NAMES else ""
        if topic is None or not _visible(node, topic.name, call):
            return _TopicAnswer(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=entry.topic_id, partitions=[]
            )
        return _described(node, topic)
    if not _visible(node, entry.name, call):
        forbidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return _TopicAnswer(error_code=forbidden, name=entry.name, topic_id=NO_ID, partitions=[])
    topic = node.topic(entry.name)
    if topic is None and create and name_is_legal(entry.name):
        with contextlib.suppress(CutOffError):
            _ = node.create_topic(entry.name, node.limits.default_partitions, (), call.moment)
        topic = node.topic(entry.name)
    if topic is None:
        legal = name_is_legal(entry.name)
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC
        return _TopicAnswer(error_code=error, name=entry.name, topic_id=NO_ID, partitions=[])
    fault = node.faults.for_partition(METADATA_KEY, topic.name, -1)
    if fault is not None:
        return _TopicAnswer(error_code=fault.error, name=topic.name, topic_id=topic.id, partitions=[])
    return _described(node, topic)


def _described(node: Node, topic: Topic) -> _TopicAnswer:
    live = set(node.placements.live())
    return _TopicAnswer(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=False,
        partitions=[_partition(node, topic, index, live) for index in range(topic.partitions)],
    )


def _partition(node: Node, topic: Topic, index: int, live: set[int]) -> _PartitionAnswer:
    placement = node.placements.placement(topic, index)
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


def describe_cluster(node: Node, _request: DescribeClusterRequest) -> Outcome:
    """Serve DescribeCluster."""
    return Answer(
        DescribeClusterResponse(
            cluster_id=node.cluster_id,
            controller_id=node.node_id,
            brokers=[
                DescribeClusterResponse.DescribeClusterBroker(broker_id=peer.node_id, host=peer.host, port=peer.port)
                for peer in node.peers
                if peer.node_id in node.placements.live()
            ],
        )
    )


def init_producer_id(node: Node, request: InitProducerIdRequest, call: Call) -> Outcome:
    """Serve InitProducerId: always a new id with epoch 0; transactions are not offered."""
    error = ErrorCode.NONE
    producer_id = None
    fault = node.faults.for_partition(INIT_PRODUCER_ID_KEY, "", -1)
    if fault is not None:
        error = fault.error
    elif request.transactional_id is not None:
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not node.permissions.may_produce_idempotently(call.client_id):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    else:
        producer_id = node.new_producer_id()
        if producer_id is None:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if producer_id is None:
        return Answer(InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1))
    return Answer(InitProducerIdResponse(error_code=error, producer_id=producer_id, producer_epoch=0))


def find_coordinator(node: Node, request: FindCoordinatorRequest, version: int) -> Outcome:
    """Serve FindCoordinator: groups are spread over the nodes by name, transactions have none."""
    if version >= 4:
        found = [_coordinator(node, key, request.key_type) for key in request.coordinator_keys]
        return Answer(FindCoordinatorResponse(coordinators=found))
    one = _coordinator(node, request.key, request.key_type if version >= 1 else GROUP)
    return Answer(
        FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )
    )


def _coordinator(node: Node, key: str, kind: int) -> _Coordinator:
    if kind != GROUP:
        why = "this broker has neither transactions nor share groups"
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return _Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=why)
    peer = group_coordinator(node, key)
    return _Coordinator(key=key, node_id=peer.node_id, host=peer.host, port=peer.port, error_code=ErrorCode.NONE)


def group_coordinator(node: Node, group: str) -> Peer:
    """Which node keeps a group's offsets."""
    return node.peers[zlib.crc32(group.encode()) % len(node.peers)]
