"""DescribeProducers: the producer state in the log of a replica, leader or follower."""

from __future__ import annotations

from typing import Final, TypeAlias

from kafka.protocol.admin.transactions import DescribeProducersRequest, DescribeProducersResponse

from ..cluster.acls import AclOperation, AclResourceType
from ..cluster.node import BrokerNode
from ..cluster.responses import ImmediateResponse, RequestContext, RequestOutcome
from ..log.error_codes import ErrorCode

DESCRIBE_PRODUCERS_KEY: Final = 61
_Producers: TypeAlias = DescribeProducersResponse.TopicResponse.PartitionResponse


def describe_producers(node: BrokerNode, request: DescribeProducersRequest, call: RequestContext) -> RequestOutcome:
    """Serve DescribeProducers from the logs of this node."""
    return ImmediateResponse(
        DescribeProducersResponse(
            topics=[
                DescribeProducersResponse.TopicResponse(
                    name=entry.name,
                    partitions=[_producers(node, entry.name, index, call) for index in entry.partition_indexes],
                )
                for entry in request.topics
            ]
        )
    )


def _producers(node: BrokerNode, name: str, index: int, call: RequestContext) -> _Producers:
    topic = node.topic(name)
    found = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else node.replica(topic, index)
    if not node.authorizer.is_allowed(call.client_id, AclOperation.READ, AclResourceType.TOPIC, name):
        found = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    fault = node.faults.for_partition(DESCRIBE_PRODUCERS_KEY, name, index)
    if fault is not None:
        found = fault.error
    if isinstance(found, ErrorCode):
        return _Producers(partition_index=index, error_code=found, error_message=None, active_producers=[])
    return _Producers(
        partition_index=index,
        error_code=ErrorCode.NONE,
        error_message=None,
        active_producers=[
            _Producers.ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=-1
                if producer.current_txn_first_offset is None
                else producer.current_txn_first_offset,
            )
            for producer_id, producer in found.log.producers.snapshot()
        ],
    )
