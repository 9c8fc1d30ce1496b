"""Declares every setting once: name, type, default, unit, limit, meaning. Generates reference page and sample.

Kafka's own settings keep Kafka's names (`linger.ms`); ours use underscores (`sync_interval_ms`).
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import ByteSize, Field

from .producer import Codec, ProducerSettings
from .section import KafkaSection, Section

OnRefusal = Literal["block", "park"]
RoundRobinName = Literal["round_robin", "org.apache.kafka.clients.producer.RoundRobinPartitioner"]


class KafkaSettings(ProducerSettings):
    """Settings of the producer, under Kafka's names."""

    client_id: str = "penstock"
    """Client name sent to the brokers, for their logs and quotas."""
    acks: Literal["all", "-1"] = "all"
    """Only `all`: with anything less, acknowledged records can be lost."""
    enable_idempotence: Literal[True] = True
    """Only `true`: exactly-once delivery depends on it."""
    linger_ms: int = Field(default=5, ge=0, le=60_000)
    """How long a batch may wait to fill, in ms, counted from the moment the router took its first record."""
    batch_size: int = Field(default=262_144, ge=1_024, le=16 << 20)
    """Maximum size of one batch in bytes, by the estimated compressed size of its records. Kafka's default is 16384; a
    daemon collects records of many clients."""
    buffer_memory: int = Field(default=64 << 20, ge=1 << 20)
    """Maximum bytes of batches that one shard may hold, for all its nodes together."""
    max_request_size: int = Field(default=1_048_576, ge=4_096, le=100 << 20)
    """Maximum bytes of one Produce request, and so of the largest record."""
    max_block_ms: int = Field(default=60_000, ge=0)
    """How long a frame waits for metadata of its topic, in ms, before it is refused with `no_metadata`."""
    partitioner_class: RoundRobinName | None = None
    """How records that name no partition are distributed. Unset: by key as in Java; records without a key fill one
    batch per partition before they move to the next partition. `round_robin`, also under Java's name: each frame's
    records go to the next partition, regardless of keys, racks and loads."""


class SpoolSettings(Section):
    """Storage of records on disk until Kafka has them."""

    bytes_max: ByteSize = Field(default=ByteSize(10 << 30), ge=64 << 20)
    """Maximum bytes of all segments; at this size new frames wait or are refused (`when_full`)."""
    segment_bytes: ByteSize = Field(default=ByteSize(64 << 20), ge=4 << 20, le=1 << 30)
    """Size of one segment file. Must exceed `frame_bytes_max`."""
    sync_interval_ms: int = Field(default=50, ge=1, le=10_000)
    """Longest time that a frame at level `accepted` waits for its sync, in ms. A power cut may lose the
    frames accepted within that time."""
    when_full: Literal["block", "reject"] = "block"
    """`block` stops reading from sessions; `reject` answers `busy`."""
    allow_unsafe_filesystem: bool = False
    """Allow the spool on tmpfs or NFS, where a sync guarantees little."""


class Exporter(Section):
    """Metrics and health over HTTP."""

    listen: str = "127.0.0.1:9797"
    """Loopback address and port for `/metrics`, `/healthz`, `/ready`, `/stats`."""


class LimitSettings(Section):
    """Limits on the router's clients."""

    frame_bytes_max: ByteSize = Field(default=ByteSize(1 << 20), ge=1_024, le=16 << 20)
    """Maximum bytes of one message of the local protocol."""
    sessions_max: int = Field(default=2_048, ge=1)
    """Maximum open sessions; further ones are refused."""
    sessions_per_uid_max: int = Field(default=256, ge=1)
    """Maximum open sessions of one uid."""
    unanswered_bytes_max: ByteSize = Field(default=ByteSize(64 << 20), ge=1 << 20)
    """Maximum bytes of a session's unacknowledged frames; above it the router stops reading from the session."""
    unanswered_records_max: int = Field(default=1_000_000, ge=1)
    """Maximum unacknowledged records of one session."""
    header_count_max: int = Field(default=1_000, ge=0)
    """Maximum headers of one record."""
    unread_answers_bytes_max: ByteSize = Field(default=ByteSize(256 << 10), ge=4_096)
    """Maximum bytes of answers that a client has not read; above it its session is closed."""
    first_message_ms: int = Field(default=2_000, ge=10)
    """Time from accepting a connection to its first complete message, in ms."""
    message_ms: int = Field(default=5_000, ge=10)
    """Time for one message to arrive completely, in ms."""
    session_retention_s: int = Field(default=604_800, ge=60)
    """How long a client id with nothing pending is remembered, in seconds."""


class AuditSettings(Section):
    """Publishing which records the daemon took and delivered, so that a reader can prove that all arrived."""

    enabled: bool = True
    """Record and publish which records were taken and delivered. When off, none of them can be proved complete."""
    topic: str = Field(default="penstock.audit", pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    """Audit topic; `penstock audit create-topic` creates it. Only the daemon writes to it: clients cannot."""
    interval_s: float = Field(default=10.0, ge=0.1, le=3_600)
    """Interval at which changes and a heartbeat are published, in seconds."""
    ranges_max: int = Field(default=100_000, ge=100, le=10_000_000)
    """Maximum ranges of ordinals (one per partition and minute) kept until they are published for the last time. Above
    it the oldest are dropped unpublished, and their hours can never be called complete. Each takes about 300 bytes of
    memory. With segments smaller than 32 MiB, fewer are kept: one per 320 bytes of `spool.segment_bytes`."""
    stop_wait_ms: int = Field(default=5_000, ge=0)
    """How long an orderly shutdown waits for the last audit records after all other records are delivered, in ms; never
    beyond `drain_ms`."""


class Timeouts(Section):
    """Timeouts between router and shards, and at shutdown."""

    shard_silence_ms: int = Field(default=10_000, ge=500)
    """A shard that sends nothing for this long is killed, in ms."""
    shard_return_ms: int = Field(default=3_000, ge=0)
    """How long a dead shard's partitions wait for it to return before other shards take them, in ms."""
    drain_ms: int = Field(default=30_000, ge=0)
    """How long a shutdown may take to deliver pending records, in ms; the rest stays in the spool."""


class DaemonTopicSettings(KafkaSection):
    """Settings for the topics that a pattern matches; the first match wins. Unset values are taken from `[kafka]`."""

    compression_type: Codec | None = None
    """Codec of this topic's batches."""
    linger_ms: int | None = Field(default=None, ge=0, le=60_000)
    """As in `[kafka]`, for this topic."""
    on_refusal: Annotated[OnRefusal, Field(alias="on_refusal")] = "block"
    """What to do when Kafka refuses a record for a reason that an operator can remove (permission, policy, deleted
    topic): `block` keeps it and retries, `park` moves the records to the dead letters."""
    audit: bool = True
    """Add to every record of this topic a header with its record id, by which it can be found again. Without it records
    can only be counted."""


class Settings(Section):
    """Settings outside of any section."""

    data_dir: Path = Path("/var/lib/penstock")
    """Directory of the spool, journals and dead letters."""
    runtime_dir: Path = Path("/run/penstock")
    """Directory of `penstock.sock`, `control.sock` and `bus/`."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level that is logged."""
    socket_mode: str = Field(default="0660", pattern="^0?[0-7]{3}$")
    """File mode of `penstock.sock`, octal."""
    shards: int = Field(default=2, ge=1, le=64)
    """Number of shard processes."""
    kafka: KafkaSettings
    spool: SpoolSettings = SpoolSettings()
    exporter: Exporter = Exporter()
    limits: LimitSettings = LimitSettings()
    timeouts: Timeouts = Timeouts()
    audit: AuditSettings = AuditSettings()
    topics: dict[str, DaemonTopicSettings] = Field(default_factory=dict)
    """Topic patterns (shell wildcards), and the settings that differ for the matching topics."""

    @property
    def socket_path(self) -> Path:
        return self.runtime_dir / "penstock.sock"

    @property
    def control_path(self) -> Path:
        return self.runtime_dir / "control.sock"

    @property
    def bus_path(self) -> Path:
        return self.runtime_dir / "bus" / "router"

    @property
    def spool_dir(self) -> Path:
        return self.data_dir / "spool"

    @property
    def journal_dir(self) -> Path:
        return self.data_dir / "journals"

    @property
    def dead_letter_dir(self) -> Path:
        return self.data_dir / "dead-letters"
