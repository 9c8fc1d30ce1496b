"""Publishes `land`'s position as offsets of a consumer group, for ordinary lag tools.

The offsets are information, not state: `land` resumes from its checkpoint. Only the audit reads them, to separate late
records from lost ones. Brokers refuse the commits while the group has a member.
"""

from collections.abc import Callable
from typing import Final, Literal

from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from ...config.pipeline import PipelineSettings
from ...runtime import logs
from ..kafka_admin import Admin, JavaOnlyKafkaError, KafkaUnreachableError, Offsets, admin_client, connect

JOB: Final = "land"
LagCommitOutcome = Literal["committed", "refused", "unreachable"]


def group_of(settings: PipelineSettings, job: str = JOB) -> str:
    return f"{settings.listener.lag_group_prefix}{job}"


class LagGroup:
    """Commits to one group. For one thread; a call blocks for at most twice its connection's timeout."""

    def __init__(self, group: str, connect: Callable[[], Admin]) -> None:
        self.group: Final = group
        self._connect = connect
        self._admin: Admin | None = None

    @classmethod
    def of(cls, settings: PipelineSettings) -> "LagGroup":
        """The group of `land` on the brokers of the settings."""
        return cls(group_of(settings), lambda: connect(settings.kafka, timeout_s=settings.listener.lag_timeout))

    def commit(self, ends: Offsets) -> tuple[LagCommitOutcome, str]:
        """Commit the offsets to read next. Return the outcome, and the reason if it is not `committed`."""
        wanted = {
            TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)
            for topic, partitions in ends.items()
            for partition, offset in partitions.items()
        }
        try:
            if self._admin is None:
                self._admin = self._connect()
            answers = self._admin.alter_group_offsets(self.group, wanted)
        except (KafkaError, KafkaUnreachableError, OSError) as error:
            self.close()
            return "unreachable", " ".join(str(error).split()) or type(error).__name__
        except JavaOnlyKafkaError as error:
            return "refused", str(error)
        refused = sorted({error.__name__ for error in answers.values() if getattr(error, "errno", 0) != 0})
        return ("refused", ", ".join(refused)) if refused else ("committed", "")

    def close(self) -> None:
        """Close the connection. The next commit opens a new one."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()


def committed_offsets(settings: PipelineSettings) -> dict[str, dict[int, int]]:
    """Return the offsets that `land` has committed, by topic and partition: those it reads next. Empty if they cannot
    be read, which is logged, or if the lag group is off."""
    if not settings.listener.lag_group:
        return {}
    group = group_of(settings)
    found: dict[str, dict[int, int]] = {}
    try:
        with admin_client(settings.kafka, timeout_s=settings.listener.lag_timeout) as admin:
            committed = admin.list_group_offsets(group).get(group, {})
    except (KafkaUnreachableError, JavaOnlyKafkaError) as error:
        _ = logs.get().warning("lag_group_read_failed", group=group, reason=str(error))
        return {}
    for place, position in committed.items():
        if position.offset >= 0:
            found.setdefault(place.topic, {})[place.partition] = position.offset
    return found
