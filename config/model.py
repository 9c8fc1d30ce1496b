"""Every setting, declared once: name, type, default, unit, limit, meaning. Reference page and sample are made from here.

Kafka's own settings keep Kafka's names (`linger.ms`); ours use underscores (`sync_interval_ms`).
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
OnRefusal = Literal["block", "park"]


def _dotted(name: str) -> str:
    return name.replace("_", ".")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class _KafkaSection(_Section):
    """Names with dots, as Kafka has them; the attribute has underscores."""

    model_config = ConfigDict(alias_generator=_dotted, populate_by_name=True, use_attribute_docstrings=True)


class Kafka(_KafkaSection):
    """The producer, under Kafka's names."""

    bootstrap_servers: str = Field(min_length=1)
    """Brokers to begin with: `host:port`, comma-separated."""
    client_id: str = "penstock"
    """Name told to the brokers, for their logs and quotas."""
    acks: Literal["all", "-1"] = "all"
    """Only `all`: anything less can lose records that were answered."""
    enable_idempotence: Literal[True] = True
    """Only `true`: exactly once depends on it."""
    security_protocol: Literal["PLAINTEXT"] = "PLAINTEXT"
    """Only `PLAINTEXT` so far."""
    linger_ms: int = Field(default=5, ge=0, le=60_000)
    """Hold a part-full batch this long for company, in ms; counts from the moment the router took its first record."""
    batch_size: int = Field(default=262_144, ge=1_024, le=16 << 20)
    """Bytes of records before compression in one batch. Kafka's default is 16384; a daemon gathers many clients."""
    buffer_memory: int = Field(default=64 << 20, ge=1 << 20)
    """Bytes of batches one shard may hold, all its nodes together."""
    compression_type: Codec = "none"
    """Codec of record batches."""
    compression_gzip_level: int = Field(default=-1, ge=-1, le=9)
    """Level of gzip; -1 is zlib's own default."""
    compression_lz4_level: int = Field(default=9, ge=1, le=17)
    """Level of lz4. Kafka's default 9 means its fast compressor; 10 to 12 and above are its high-compression levels, 12 at most."""
    compression_zstd_level: int = Field(default=3, ge=-131_072, le=22)
    """Level of zstd."""
    max_request_size: int = Field(default=1_048_576, ge=4_096, le=100 << 20)
    """Bytes of one Produce request, and so of the largest record."""
    max_in_flight_requests_per_connection: int = Field(default=5, ge=1, le=5)
    """Produce requests sent to a node before its first answer."""
    request_timeout_ms: int = Field(default=30_000, ge=1_000)
    """How long a request may go unanswered, in ms, before its connection is closed and the batches are sent again."""
    retry_backoff_ms: int = Field(default=100, ge=1)
    """First wait before a batch or request is tried again, in ms; doubles with every try."""
    retry_backoff_max_ms: int = Field(default=1_000, ge=1)
    """Longest such wait, in ms."""
    reconnect_backoff_ms: int = Field(default=50, ge=1)
    """First wait before a connection is tried again, in ms; doubles with every try."""
    reconnect_backoff_max_ms: int = Field(default=1_000, ge=1)
    """Longest such wait, in ms."""
    socket_connection_setup_timeout_ms: int = Field(default=10_000, ge=100)
    """How long a connection may take to be established, in ms."""
    socket_connection_setup_timeout_max_ms: int = Field(default=30_000, ge=100)
    """Longest such time, in ms; it doubles with every failure."""
    connections_max_idle_ms: int = Field(default=540_000, ge=1_000)
    """Close a connection unused for so long, in ms."""
    send_buffer_bytes: int = Field(default=131_072, ge=-1)
    """SO_SNDBUF of connections to brokers; -1 leaves it to the kernel."""
    receive_buffer_bytes: int = Field(default=65_536, ge=-1)
    """SO_RCVBUF of connections to brokers; -1 leaves it to the kernel."""
    metadata_max_age_ms: int = Field(default=300_000, ge=1_000)
    """Ask for metadata at least this often, in ms."""
    max_block_ms: int = Field(default=60_000, ge=0)
    """How long a frame waits for metadata of its topic, in ms, before it is refused with `no_metadata`."""
    allow_auto_create_topics: bool = False
    """Let brokers make a topic that is asked for and does not exist."""
    partitioner_ignore_keys: bool = False
    """Choose partitions as if records had no keys."""


class Spool(_Section):
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


class Exporter(_Section):
    """Metrics and health over HTTP."""

    listen: str = "127.0.0.1:9797"
    """Loopback address and port of `/metrics`, `/healthz`, `/ready`, `/stats`."""


class Limits(_Section):
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


class Timeouts(_Section):
    """Between router and shards, and at the end."""

    shard_silence_ms: int = Field(default=10_000, ge=500)
    """A shard silent for so long is killed, in ms."""
    shard_return_ms: int = Field(default=3_000, ge=0)
    """A dead shard's partitions wait so long for its return before others take them, in ms."""
    drain_ms: int = Field(default=30_000, ge=0)
    """How long a stop may take to deliver what is there, in ms; the rest stays in the spool."""


class Topic(_KafkaSection):
    """Settings for the topics a pattern matches; the first match wins. Unset values are the daemon's own."""

    compression_type: Codec | None = None
    """Codec of this topic's batches."""
    linger_ms: int | None = Field(default=None, ge=0, le=60_000)
    """As in `[kafka]`, for this topic."""
    on_refusal: Annotated[OnRefusal, Field(alias="on_refusal")] = "block"
    """A refusal an operator can lift (permission, policy, deleted topic): `block` keeps and retries, `park` puts the records
    into the dead letters."""


class Settings(_Section):
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
    kafka: Kafka
    spool: Spool = Spool()
    exporter: Exporter = Exporter()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    topics: dict[str, Topic] = Field(default_factory=dict)
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
