"""What goes wrong in the demo, done by other programs: rows deleted from a table, records written to Kafka again.

None of it uses the pipeline: delta-rs and confluent-kafka, as anybody could.
"""

import json
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from deltalake import DeltaTable

from .running import DemoError

READ_S = 20.0


def some_rows(table: Path, count: int) -> list[dict[str, Any]]:
    """Rows of the bronze table, far apart: id and place in Kafka."""
    columns = ["incarnation", "origin", "ordinal", "partition", "offset"]
    rows = (
        DeltaTable(table).to_pyarrow_table(columns=columns).sort_by([("origin", "ascending"), ("ordinal", "ascending")])
    )
    step = max(1, rows.num_rows // (count + 1))
    return rows.take([step * (number + 1) for number in range(count)]).to_pylist()


def text_of(row: dict[str, Any]) -> str:
    """The record id as people write it."""
    return f"{row['incarnation']}-{row['origin']}-{row['ordinal']}"


def delete_rows(table: Path, rows: list[dict[str, Any]]) -> None:
    """Behind the pipeline's back. Raises DemoError."""
    wanted = " or ".join(f"(origin = {row['origin']} and ordinal = {row['ordinal']})" for row in rows)
    told = DeltaTable(table).delete(wanted)
    if told["num_deleted_rows"] != len(rows):
        raise DemoError(f"{told['num_deleted_rows']} rows were deleted, not {len(rows)}")


def write_again(address: str, topic: str, rows: list[dict[str, Any]]) -> None:
    """Read these records from Kafka and write them once more, headers and all. Raises DemoError."""
    reader = Consumer({"bootstrap.servers": address, "group.id": "penstock-demo-copier", "enable.auto.commit": False})
    writer = Producer({"bootstrap.servers": address, "acks": "all"})
    try:
        for row in rows:
            reader.assign([TopicPartition(topic, row["partition"], row["offset"])])
            message = reader.poll(READ_S)
            if message is None or message.error():
                raise DemoError(f"the record at {row['partition']}/{row['offset']} could not be read")
            writer.produce(
                topic, message.value(), message.key(), partition=row["partition"], headers=list(message.headers() or [])
            )
        if writer.flush(READ_S):
            raise DemoError("records could not be written again")
    except KafkaException as error:
        raise DemoError(f"records could not be written again: {error}") from error
    finally:
        reader.close()


def count_rows(table: Path) -> int:
    """Rows of a table."""
    return int(DeltaTable(table).to_pyarrow_table(columns=["offset"]).num_rows)


def named(tables: Path) -> tuple[list[str], dict[str, list[tuple[int, int]]]]:
    """What the newest audit says: ids that are lost; ids that are there twice, with their places."""
    report = DeltaTable(tables / "audit_report").to_pyarrow_table(columns=["run", "run_at"]).to_pylist()
    newest = max(report, key=lambda row: row["run_at"])["run"]
    missing = [row for row in _rows(tables / "audit_missing") if row["run"] == newest and row["class"] == "lost"]
    lost = [text_of(row | {"ordinal": ordinal}) for row in missing for ordinal in range(row["first"], row["end"])]
    doubled = [row for row in _rows(tables / "audit_duplicates") if row["run"] == newest]
    return sorted(lost), {
        text_of(row): sorted((place["partition"], place["offset"]) for place in row["places"]) for row in doubled
    }


def last_seals(tables: Path) -> list[dict[str, Any]]:
    """The newest row of each hour in `seals`."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for row in _rows(tables / "seals"):
        place = (row["topic"], row["hour"])
        if place not in newest or row["generation"] >= newest[place]["generation"]:
            newest[place] = row
    return [newest[place] for place in sorted(newest)]


def _rows(table: Path) -> list[dict[str, Any]]:
    return DeltaTable(table).to_pyarrow_table().to_pylist() if (table / "_delta_log").is_dir() else []


def value_of(number: int) -> bytes:
    """A click."""
    pages = ("/", "/search", "/cart", "/help")
    return json.dumps({"user": f"user-{number % 997}", "page": pages[number % len(pages)], "number": number}).encode()
