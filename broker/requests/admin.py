"""Admin requests: create, delete and change topics, delete records, describe settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeAlias

from kafka.protocol.admin.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafka.protocol.admin.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

from ..cluster.acls import CLUSTER_NAME, AclOperation, AclResourceType
from ..cluster.node import NO_ID, BrokerNode
from ..cluster.responses import ImmediateResponse, RequestContext, RequestOutcome
from ..log.error_codes import ErrorCode
from ..log.topics import PARTITIONS_MAX, SETTINGS, BrokerTopic, SettingError, check_settings, name_is_legal

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
DEFAULT_SOURCE: Final = 5
TOPIC_SOURCE: Final = 1
STATIC_BROKER_SOURCE: Final = 4
LONG_KIND: Final = 5
ALL_RECORDS: Final = -1
"""Offset that means the high watermark."""

_Created: TypeAlias = CreateTopicsResponse.CreatableTopicResult
_Deleted: TypeAlias = DeleteTopicsResponse.DeletableTopicResult
_Described: TypeAlias = DescribeConfigsResponse.DescribeConfigsResult
_Setting: TypeAlias = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
_Trimmed: TypeAlias = DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult
_Altered: TypeAlias = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


class AdminRequestError(Exception):
    """An administrative request cannot be fulfilled."""

    def __init__(self, error: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.error = error
        self.why = why


def create_topics(node: BrokerNode, request: CreateTopicsRequest, call: RequestContext) -> RequestOutcome:
    """Serve CreateTopics, on any node."""
    names = Counter(entry.name for entry in request.topics)
    answers: list[_Created] = []
    for entry in request.topics:
        try:
            if names[entry.name] > 1:
                raise AdminRequestError(ErrorCode.INVALID_REQUEST, "the topic is twice in the request")
            answers.append(_create(node, entry, only_check=request.validate_only, call=call))
        except AdminRequestError as denied:
            answers.append(
                _Created(name=entry.name, topic_id=NO_ID, error_code=denied.error, error_message=denied.why, configs=[])
            )
    return ImmediateResponse(CreateTopicsResponse(topics=answers))


def _create(
    node: BrokerNode, entry: CreateTopicsRequest.CreatableTopic, *, only_check: bool, call: RequestContext
) -> _Created:
    _need(node, call, AclOperation.CREATE, entry.name)
    if not name_is_legal(entry.name):
        raise AdminRequestError(ErrorCode.INVALID_TOPIC, "a name has 1 to 249 of a-z A-Z 0-9 . _ -")
    if entry.assignments:
        raise AdminRequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions are placed by this broker's own rule")
    partitions = node.limits.default_partitions if entry.num_partitions == -1 else entry.num_partitions
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise AdminRequestError(ErrorCode.INVALID_PARTITIONS, f"1 to {PARTITIONS_MAX} partitions")
    most = node.metadata_cache.replicas_max
    replicas = min(node.limits.default_replicas, most) if entry.replication_factor == -1 else entry.replication_factor
    if not 1 <= replicas <= most:
        raise AdminRequestError(ErrorCode.INVALID_REPLICATION_FACTOR, f"there are 1 to {most} replicas")
    settings = _settings({item.name: item.value for item in entry.configs})
    if node.topic(entry.name) is not None:
        raise AdminRequestError(ErrorCode.TOPIC_ALREADY_EXISTS, "the topic exists")
    topic_id = NO_ID
    if not only_check:
        topic = node.create_topic(entry.name, partitions, settings, call.moment, replicas)
        if topic is None:
            raise AdminRequestError(ErrorCode.TOPIC_ALREADY_EXISTS, "another node has just made the topic")
        topic_id = topic.id
    return _Created(
        name=entry.name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[
            _Created.CreatableTopicConfigs(
                name=item.name,
                value=item.value,
                read_only=False,
                config_source=item.config_source,
                is_sensitive=False,
            )
            for item in _topic_settings(dict(settings))
        ],
    )


def _need(node: BrokerNode, call: RequestContext, operation: AclOperation, name: str) -> None:
    if not node.authorizer.is_allowed(call.client_id, operation, AclResourceType.TOPIC, name):
        raise AdminRequestError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"no right to {operation.value}")


def _settings(asked: dict[str, str | None]) -> tuple[tuple[str, str], ...]:
    try:
        return check_settings({name: value for name, value in asked.items() if value is not None})
    except SettingError as bad:
        raise AdminRequestError(ErrorCode.INVALID_CONFIG, str(bad)) from bad


def delete_topics(node: BrokerNode, request: DeleteTopicsRequest, call: RequestContext) -> RequestOutcome:
    """Serve DeleteTopics, by name or by id."""
    answers: list[_Deleted] = []
    if call.version < 6:
        names = request.topic_names
        answers += [_delete(node, node.topic(name), _Deleted(name=name, topic_id=NO_ID), call) for name in names]
    else:
        for entry in request.topics:
            topic = node.topic(entry.name) if entry.name is not None else node.topic_by_id(entry.topic_id)
            answers.append(_delete(node, topic, _Deleted(name=entry.name, topic_id=entry.topic_id), call))
    return ImmediateResponse(DeleteTopicsResponse(responses=answers))


def _delete(node: BrokerNode, topic: BrokerTopic | None, answer: _Deleted, call: RequestContext) -> _Deleted:
    named = answer.name is not None
    name = answer.name if topic is None else topic.name
    # Without the permission, a client cannot distinguish a forbidden topic from a missing one.
    if name and not node.authorizer.is_allowed(call.client_id, AclOperation.DELETE, AclResourceType.TOPIC, name):
        answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if named else ErrorCode.UNKNOWN_TOPIC_ID
        return answer
    if topic is None or not node.delete_topic(topic, call.moment):
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if named else ErrorCode.UNKNOWN_TOPIC_ID
        return answer
    answer.name, answer.topic_id, answer.error_code = topic.name, topic.id, ErrorCode.NONE
    return answer


def delete_records(node: BrokerNode, request: DeleteRecordsRequest, call: RequestContext) -> RequestOutcome:
    """Serve DeleteRecords: move the start of logs forward, at most to the high watermark."""
    return ImmediateResponse(
        DeleteRecordsResponse(
            topics=[
                DeleteRecordsResponse.DeleteRecordsTopicResult(
                    name=entry.name,
                    partitions=[_delete_partition_records(node, entry.name, part, call) for part in entry.partitions],
                )
                for entry in request.topics
            ]
        )
    )


def _delete_partition_records(
    node: BrokerNode,
    name: str,
    part: DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition,
    call: RequestContext,
) -> _Trimmed:
    index = part.partition_index
    topic = node.topic(name)
    found = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else node.partition(topic, index)
    if not node.authorizer.is_allowed(call.client_id, AclOperation.DELETE, AclResourceType.TOPIC, name):
        found = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if isinstance(found, ErrorCode):
        return _Trimmed(partition_index=index, low_watermark=-1, error_code=found)
    offset = found.log.high_watermark if part.offset == ALL_RECORDS else part.offset
    if not 0 <= offset <= found.log.high_watermark:
        return _Trimmed(partition_index=index, low_watermark=-1, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    node.delete_before(found, index, offset)
    return _Trimmed(partition_index=index, low_watermark=found.log.start_offset, error_code=ErrorCode.NONE)


def describe_configs(node: BrokerNode, request: DescribeConfigsRequest, call: RequestContext) -> RequestOutcome:
    """Serve DescribeConfigs for topics and for this node."""
    return ImmediateResponse(
        DescribeConfigsResponse(results=[_describe(node, entry, call) for entry in request.resources])
    )


def _describe(
    node: BrokerNode, entry: DescribeConfigsRequest.DescribeConfigsResource, call: RequestContext
) -> _Described:
    answer = _Described(
        error_code=ErrorCode.NONE,
        error_message=None,
        resource_type=entry.resource_type,
        resource_name=entry.resource_name,
        configs=[],
    )
    on_topic = entry.resource_type == TOPIC_RESOURCE
    kind, name = (AclResourceType.TOPIC, entry.resource_name) if on_topic else (AclResourceType.CLUSTER, CLUSTER_NAME)
    if not node.authorizer.is_allowed(call.client_id, AclOperation.DESCRIBE_CONFIGS, kind, name):
        forbidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED if on_topic else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        answer.error_code = forbidden
        return answer
    if on_topic:
        topic = node.topic(entry.resource_name)
        if topic is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return answer
        found: Iterable[_Setting] = _topic_settings(dict(topic.settings))
    elif entry.resource_type == BROKER_RESOURCE and entry.resource_name in {"", str(node.node_id)}:
        found = _broker_settings(node)
    else:
        answer.error_code, answer.error_message = ErrorCode.INVALID_REQUEST, "topics and this node only"
        return answer
    wanted = entry.configuration_keys
    answer.configs = [item for item in found if not wanted or item.name in wanted]
    return answer


def _topic_settings(own: dict[str, str]) -> list[_Setting]:
    return [
        _Setting(
            name=name,
            value=own.get(name, setting.default),
            read_only=False,
            is_default=name not in own,
            config_source=TOPIC_SOURCE if name in own else DEFAULT_SOURCE,
            is_sensitive=False,
            synonyms=[],
            config_type=setting.kind,
            documentation=None,
        )
        for name, setting in SETTINGS.items()
    ]


def _broker_settings(node: BrokerNode) -> list[_Setting]:
    values = {
        "auto.create.topics.enable": (str(node.limits.auto_create_topics).lower(), 1),
        "default.replication.factor": (str(node.limits.default_replicas), 3),
        "num.partitions": (str(node.limits.default_partitions), 3),
        "producer.id.expiration.ms": (str(node.limits.producer_id_expiration_ms), 3),
    }
    return [
        _Setting(
            name=name,
            value=value,
            read_only=True,
            is_default=False,
            config_source=STATIC_BROKER_SOURCE,
            is_sensitive=False,
            synonyms=[],
            config_type=kind,
            documentation=None,
        )
        for name, (value, kind) in values.items()
    ]


def alter_configs(node: BrokerNode, request: IncrementalAlterConfigsRequest, call: RequestContext) -> RequestOutcome:
    """Serve IncrementalAlterConfigs for topics: set a value or restore the default."""
    answers: list[_Altered] = []
    for entry in request.resources:
        answer = _Altered(
            error_code=ErrorCode.NONE,
            error_message=None,
            resource_type=entry.resource_type,
            resource_name=entry.resource_name,
        )
        try:
            _alter(node, entry, only_check=request.validate_only, call=call)
        except AdminRequestError as denied:
            answer.error_code, answer.error_message = denied.error, denied.why
        answers.append(answer)
    return ImmediateResponse(IncrementalAlterConfigsResponse(responses=answers))


def _alter(
    node: BrokerNode,
    entry: IncrementalAlterConfigsRequest.AlterConfigsResource,
    *,
    only_check: bool,
    call: RequestContext,
) -> None:
    if entry.resource_type != TOPIC_RESOURCE:
        raise AdminRequestError(ErrorCode.INVALID_REQUEST, "only the settings of topics can be changed")
    _need(node, call, AclOperation.ALTER_CONFIGS, entry.resource_name)
    topic = node.topic(entry.resource_name)
    if topic is None:
        raise AdminRequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic")
    values: dict[str, str | None] = dict(topic.settings)
    for item in entry.configs:
        match item.config_operation, item.value:
            case 0, str(value):
                values[item.name] = value
            case 1, _:
                values[item.name] = SETTINGS[item.name].default if item.name in SETTINGS else ""
            case _:
                raise AdminRequestError(ErrorCode.INVALID_CONFIG, f"{item.name}: set and delete only")
    settings = _settings(values)
    if not only_check and not node.alter_topic(topic, settings, call.moment):
        raise AdminRequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic has just been deleted")
