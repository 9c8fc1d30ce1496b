"""Every setting, declared once: name, type, default, unit, limit, meaning. Reference page and sample are made from here.

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
    """The producer, under Kafka's names."""

    client_id: str = "penstock"
    """Name told to the brokers, for their logs and quotas."""
    acks: Literal["all", "-1"] = "all"
    """Only `all`: anything less can lose records that were answered."""
    enable_idempotence: Literal[True] = True
    """Only `true`: exactly once depends on it."""
    linger_ms: int = Field(default=5, ge=0, le=60_000)
    """Hold a part-full batch this long for company, in ms; counts from the moment the router took its first record."""
    batch_size: int = Field(default=262_144, ge=1_024, le=16 << 20)
    """Bytes of one batch, by what its records should compress to. Kafka's default is 16384; a daemon gathers many clients."""
    buffer_memory: int = Field(default=64 << 20, ge=1 << 20)
    """Bytes of batches one shard may hold, all its nodes together."""
    max_request_size: int = Field(default=1_048_576, ge=4_096, le=100 << 20)
    """Bytes of one Produce request, and so of the largest record."""
    max_block_ms: int = Field(default=60_000, ge=0)
    """How long a frame waits for metadata of its topic, in ms, before it is refused with `no_metadata`."""
    partitioner_class: RoundRobinName | None = None
    """How records that name no partition are dealt. Unset: by key as in Java, without a key a partition for a batch's worth at a
    time. `round_robin`, also under Java's name: each frame's go to the next partition, whatever their keys, racks and loads."""


class SpoolSettings(Section):
    """Records on disk until Kafka has them."""

    bytes_max: ByteSize = Field(default=ByteSize(10 << 30), ge=64 << 20)
    """Bytes of segments; at this size new frames wait or are refused (`when_full`)."""
    segment_bytes: ByteSize = Field(default=ByteSize(64 << 20), ge=4 << 20, le=1 << 30)
    """Size of one segment file. Must exceed `frame_bytes_max`."""
    sync_interval_ms: int = Field(default=50, ge=1, le=10_000)
    """Longest time a frame at `accepted` waits for its sync, in ms: what a power cut may cost that level."""
    when_full: Literal["block", "reject"] = "block"
    """`block` stops reading from sessions, `reject` answers `busy`."""
    allow_unsafe_filesystem: bool = False
    """Let the spool lie on tmpfs or NFS, where a sync means little."""


class Exporter(Section):
    """Metrics and health over HTTP."""

    listen: str = "127.0.0.1:9797"
    """Loopback address and port of `/metrics`, `/healthz`, `/ready`, `/stats`."""


class LimitSettings(Section):
    """What clients may ask of the router."""

    frame_bytes_max: ByteSize = Field(default=ByteSize(1 << 20), ge=1_024, le=16 << 20)
    """Longest message of the local protocol."""
    sessions_max: int = Field(default=2_048, ge=1)
    """Open sessions; more are refused."""
    sessions_per_uid_max: int = Field(default=256, ge=1)
    """Open sessions of one uid."""
    unanswered_bytes_max: ByteSize = Field(default=ByteSize(64 << 20), ge=1 << 20)
    """Bytes of unanswered frames of one session; beyond it the router stops reading from it."""
    unanswered_records_max: int = Field(default=1_000_000, ge=1)
    """Unanswered records of one session."""
    header_count_max: int = Field(default=1_000, ge=0)
    """Headers of one record."""
    unread_answers_bytes_max: ByteSize = Field(default=ByteSize(256 << 10), ge=4_096)
    """Answers a client has not read; beyond it its session is closed."""
    first_message_ms: int = Field(default=2_000, ge=10)
    """Time from accept to the first whole message, in ms."""
    message_ms: int = Field(default=5_000, ge=10)
    """Time for one message to arrive whole, in ms."""
    session_retention_s: int = Field(default=604_800, ge=60)
    """A client id with nothing pending is forgotten after so long, in seconds."""


class AuditSettings(Section):
    """What the daemon took and delivered, told in a topic, so that a reader can prove that all of it arrived."""

    enabled: bool = True
    """Keep the books and tell them. Off: neither, and no record of this daemon can be proved complete."""
    topic: str = Field(default="penstock.audit", pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    """The topic; `penstock audit create-topic` makes it. It is the daemon's own: clients cannot write to it."""
    interval_s: float = Field(default=10.0, ge=0.1, le=3_600)
    """What has changed is told so often, in seconds, and a heartbeat with it."""
    ranges_max: int = Field(default=100_000, ge=100, le=10_000_000)
    """Ranges of ordinals (one for each partition and minute) kept until they are told for the last time. Beyond it the oldest are
    forgotten untold, and the hours they belong to can never be called complete. Each costs some 300 bytes of memory.
    Where segments are smaller than 32 MiB, fewer are kept: one for each 320 bytes of `spool.segment_bytes`."""
    stop_wait_ms: int = Field(default=5_000, ge=0)
    """How long an orderly stop waits for the last of these records once all others are delivered, in ms; never beyond `drain_ms`."""


class Timeouts(Section):
    """Between router and shards, and at the end."""

    shard_silence_ms: int = Field(default=10_000, ge=500)
    """A shard silent for so long is killed, in ms."""
    shard_return_ms: int = Field(default=3_000, ge=0)
    """A dead shard's partitions wait so long for its return before others take them, in ms."""
    drain_ms: int = Field(default=30_000, ge=0)
    """How long a stop may take to deliver what is there, in ms; the rest stays in the spool."""


class DaemonTopicSettings(KafkaSection):
    """Settings for the topics a pattern matches; the first match wins. Unset values are the daemon's own."""

    compression_type: Codec | None = None
    """Codec of this topic's batches."""
    linger_ms: int | None = Field(default=None, ge=0, le=60_000)
    """As in `[kafka]`, for this topic."""
    on_refusal: Annotated[OnRefusal, Field(alias="on_refusal")] = "block"
    """A refusal an operator can lift (permission, policy, deleted topic): `block` keeps and retries, `park` puts the records
    into the dead letters."""
    audit: bool = True
    """Give every record of this topic the id header by which it can be found again. Without it records can only be counted."""


class Settings(Section):
    """The whole file."""

    data_dir: Path = Path("/var/lib/penstock")
    """Spool, journals, dead letters."""
    runtime_dir: Path = Path("/run/penstock")
    """`penstock.sock`, `control.sock`, `bus/`."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least level that is logged."""
    socket_mode: str = Field(default="0660", pattern="^0?[0-7]{3}$")
    """Mode of `penstock.sock`, octal."""
    shards: int = Field(default=2, ge=1, le=64)
    """Shard processes."""
    kafka: KafkaSettings
    spool: SpoolSettings = SpoolSettings()
    exporter: Exporter = Exporter()
    limits: LimitSettings = LimitSettings()
    timeouts: Timeouts = Timeouts()
    audit: AuditSettings = AuditSettings()
    topics: dict[str, DaemonTopicSettings] = Field(default_factory=dict)
    """Patterns (shell wildcards) and what differs for their topics."""

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
