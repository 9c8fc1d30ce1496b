"""The judge of tables: what Kafka holds on one side, what lies in `bronze_*` and `quarantine` on the other.

It reads both by clients that are not ours (confluent-kafka; deltalake for the list of files, Arrow for the files), knows
nothing of Spark, and takes no word of the jobs for anything.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from deltalake import DeltaTable

from .kafka_cluster import Cluster
from .processes import Deadline
from .readers import FETCH_RECORDS, PASSING_ERRORS
from .records import Found

ID_HEADER: Final = "penstock"
OFFSET_BITS: Final = 44
EXAMPLES_MAX: Final = 12
QUARANTINE: Final = "quarantine"
_POSITION: Final = ("topic", "partition", "offset", "incarnation", "origin", "ordinal", "accept_ts", "kafka_ts", "hour")
_SEEN: Final = pa.schema([("place", pa.int64()), ("id", pa.string())])


class Place(NamedTuple):
    """Where a record lies in its topic."""

    partition: int
    offset: int

    @classmethod
    def unpack(cls, packed: int) -> "Place":
        """From the integer that tables are joined by."""
        return cls(packed >> OFFSET_BITS, packed & (1 << OFFSET_BITS) - 1)


@dataclass(slots=True)
class Judgement:
    """How a topic and its rows compare. All lists are empty when each record is in exactly one row."""

    records: int = 0
    rows: int = 0
    quarantined: int = 0
    """Of the rows."""
    missing: list[Place] = field(default_factory=list[Place])
    """In Kafka, and in no row."""
    doubled: list[Place] = field(default_factory=list[Place])
    """In more than one row."""
    strange: list[Place] = field(default_factory=list[Place])
    """In a row, and not in Kafka."""
    changed: list[Place] = field(default_factory=list[Place])
    """The row has another record id, or none, or one where the record has none."""
    misfiled: list[Place] = field(default_factory=list[Place])
    """The row's hour is not that of its accept time, or of Kafka's time where it has none."""

    def wrong(self) -> list[str]:
        """What is not as it must be, with examples; empty when all is well."""
        found = {name: getattr(self, name) for name in ("missing", "doubled", "strange", "changed", "misfiled")}
        return [f"{name}: {len(places)}, as {places[:EXAMPLES_MAX]}" for name, places in found.items() if places]

    def assert_exact(self) -> None:
        """Every record in exactly one row. Raise AssertionError that says what is not."""
        wrong = self.wrong()
        assert not wrong, "\n".join([*wrong, self.summary()])
        assert self.rows == self.records, self.summary()

    def summary(self) -> str:
        """One line for a log."""
        return f"{self.records} records, {self.rows} rows, {self.quarantined} of them in quarantine"


def id_text(header: bytes) -> str:
    """The text form of a record id header, read from its bytes. Raise AssertionError on what is none."""
    assert (len(header), header[0]) == (23, 1), header
    origin, ordinal = int.from_bytes(header[7:10], "big"), int.from_bytes(header[10:17], "big")
    return f"{header[1:7].hex()}-{origin}-{ordinal}"


def name_of(topic: str) -> str:
    """The table of a topic."""
    return "bronze_" + re.sub(r"[^a-z0-9_]", "_", topic)


class Topic:
    """What a reader of committed records finds in a topic now, once through."""

    def __init__(self, cluster: Cluster, topic: str, *, seconds: float = 120) -> None:
        """Nothing is read before `records` is."""
        self._cluster = cluster
        self.topic = topic
        self._seconds = seconds
        self._places = array("q")
        self._ids: list[str | None] = []

    def records(self) -> Iterator[Found]:
        """Every record, each partition in offset order, up to its end as of now; their places and ids are kept.

        The id header is taken off. Raise TooLateError, or KafkaException.
        """
        deadline = Deadline(self._seconds, f"reading {self.topic}")
        partitions = sorted(self._cluster.metadata(self.topic).topics[self.topic].partitions)
        reader = Consumer(
            {
                "bootstrap.servers": self._cluster.bootstrap,
                "group.id": "penstock-tests-bronze",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "log_level": 2,
            }
        )
        try:
            reader.assign([TopicPartition(self.topic, number, 0) for number in partitions])
            left = set(partitions)
            while left:
                for message in reader.consume(FETCH_RECORDS, timeout=min(1.0, deadline.left())):
                    error = message.error()
                    if error is None:
                        yield self._keep(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        left.discard(message.partition())
                    elif not error.retriable() and error.code() not in PASSING_ERRORS:
                        raise KafkaException(error)
        finally:
            reader.close()

    def _keep(self, message: Any) -> Found:
        headers = tuple(message.headers() or ())
        ids = [body for name, body in headers if name == ID_HEADER]
        assert len(ids) <= 1, f"{self.topic} {message.partition()}@{message.offset()}: {len(ids)} id headers"
        self._places.append(message.partition() << OFFSET_BITS | message.offset())
        self._ids.append(id_text(ids[0]) if ids else None)
        rest = tuple((name, body) for name, body in headers if name != ID_HEADER)
        stamp = message.timestamp()[1]
        return Found(message.partition(), message.offset(), message.key(), message.value(), rest, stamp)

    def read(self) -> "Topic":
        """Read it all, for places and ids alone."""
        for _ in self.records():
            pass
        return self

    def seen(self) -> pa.Table:
        """Places and ids of what was read."""
        places = pa.array(self._places, pa.int64()) if self._places else pa.array([], pa.int64())
        return pa.table([places, pa.array(self._ids, pa.string())], schema=_SEEN)

    @property
    def ids(self) -> list[str | None]:
        """The ids, as read."""
        return self._ids


def files_of(table: Path, *, version: int | None = None) -> list[str]:
    """The data files of a version of a table, the newest when none is named; none when there is no table."""
    if not (table / "_delta_log").is_dir():
        return []
    # Arrow reads the files, not `to_pyarrow_table`: that goes through a Python object per file, and a process that has
    # done so may abort when it ends.
    return [uri.removeprefix("file://") for uri in DeltaTable(str(table), version=version).file_uris()]


def rows_of(table: Path, columns: Sequence[str] | None = None, *, version: int | None = None) -> pa.Table | None:
    """The rows of a table, or these columns of them; None when there is no table, or nothing in it."""
    files = files_of(table, version=version)
    if not files:
        return None
    by_hour = ds.partitioning(pa.schema([("hour", pa.string())]), flavor="hive")
    found = ds.dataset(files, partitioning=by_hour, partition_base_dir=str(table)).to_table(
        columns=None if columns is None else list(columns)
    )
    return found.cast(pa.schema([(each.name, _plain(each.type)) for each in found.schema]))


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type without views, which delta-rs writes where it rewrites a file and which few functions of Arrow take."""
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _plain(each.type)) for each in kind])
    return kind


def landed(tables: Path, topic: str) -> pa.Table:
    """The rows of a topic in both tables: `place`, `id`, `hour`, `due` (the hour it should be in), `quarantined`."""
    parts: list[pa.Table] = []
    for name in (name_of(topic), QUARANTINE):
        rows = rows_of(tables / name, _POSITION)
        if rows is None:
            continue
        rows = rows.filter(pc.equal(rows["topic"], topic))
        place = pc.bit_wise_or(pc.shift_left(rows["partition"].cast(pa.int64()), OFFSET_BITS), rows["offset"])
        numbers = [rows[name].cast(pa.string()) for name in ("origin", "ordinal")]
        at = pc.coalesce(rows["accept_ts"], rows["kafka_ts"]).cast(pa.timestamp("us"))
        parts.append(
            pa.table(
                {
                    "place": place,
                    "id": pc.binary_join_element_wise(rows["incarnation"].cast(pa.string()), *numbers, "-"),
                    "hour": rows["hour"].cast(pa.string()),
                    "due": pc.strftime(at.cast(pa.timestamp("s"), safe=False), format="%Y-%m-%d-%H"),
                    "quarantined": pa.array([name == QUARANTINE] * len(rows), pa.bool_()),
                }
            )
        )
    if parts:
        return pa.concat_tables(parts)
    text = pa.string()
    return pa.schema(
        [("place", pa.int64()), ("id", text), ("hour", text), ("due", text), ("quarantined", pa.bool_())]
    ).empty_table()


def found_in(tables: Path, topic: str) -> Iterator[Found]:
    """The rows of a `raw` topic's bronze table as a reader of the topic would have found them, in order of offset."""
    rows = rows_of(tables / name_of(topic), ("partition", "offset", "key", "value", "headers", "kafka_ts"))
    if rows is None:
        return
    rows = rows.sort_by([("partition", "ascending"), ("offset", "ascending")])
    for batch in rows.to_batches(max_chunksize=FETCH_RECORDS):
        stamps = batch["kafka_ts"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64()).to_pylist()
        columns = [batch[name].to_pylist() for name in ("partition", "offset", "key", "value", "headers")]
        for partition, offset, key, value, headers, stamp in zip(*columns, stamps, strict=True):
            plain = tuple((each["key"], each["value"]) for each in headers or ())
            yield Found(partition, offset, key, value, plain, stamp)


def compare(seen: pa.Table, rows: pa.Table) -> Judgement:
    """Hold the rows (as `landed` gives them) against the records (as `Topic.seen` does)."""
    counts = rows.group_by("place").aggregate([("place", "count")])
    both = seen.join(rows.select(["place", "id"]), "place", join_type="inner", right_suffix="_row")
    other = pc.not_equal(pc.coalesce(both["id"], ""), pc.coalesce(both["id_row"], ""))
    return Judgement(
        records=len(seen),
        rows=len(rows),
        quarantined=pc.sum(rows["quarantined"]).as_py() or 0,
        missing=_places(seen.select(["place"]).join(rows.select(["place"]), "place", join_type="left anti")),
        doubled=_places(counts.filter(pc.greater(counts["place_count"], 1))),
        strange=_places(rows.select(["place"]).join(seen.select(["place"]), "place", join_type="left anti")),
        changed=_places(both.filter(other)),
        misfiled=_places(rows.filter(pc.not_equal(rows["hour"], rows["due"]))),
    )


def judge_topic(cluster: Cluster, tables: Path, topic: str) -> Judgement:
    """Read both and compare."""
    return compare(Topic(cluster, topic).read().seen(), landed(tables, topic))


def _places(table: pa.Table) -> list[Place]:
    return sorted({Place.unpack(packed) for packed in table["place"].to_pylist()})


def twice(ids: Iterable[str | None]) -> dict[str, int]:
    """The ids that are there more than once, and how often."""
    once: set[str] = set()
    more: dict[str, int] = {}
    for each in ids:
        if each is None:
            continue
        if each in once:
            more[each] = more.get(each, 1) + 1
        once.add(each)
    return more


def unnumbered(ids: Iterable[str | None]) -> dict[str, list[int]]:
    """`<incarnation>-<origin>` to the ordinals that nobody has, below the highest that somebody has; of those with some."""
    found: dict[str, set[int]] = {}
    for each in ids:
        if each is not None:
            origin, _, ordinal = each.rpartition("-")
            found.setdefault(origin, set()).add(int(ordinal))
    gaps = {origin: sorted(set(range(max(there) + 1)) - there) for origin, there in found.items()}
    return {origin: missing for origin, missing in gaps.items() if missing}
