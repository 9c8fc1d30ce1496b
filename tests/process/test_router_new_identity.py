"""A spool that needs a new producer id goes on under the old one in no start, wherever the router before was killed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from penstock.config.model import Settings
from penstock.daemon.ledger.entries import ControlEntry, StampRowEntry
from penstock.daemon.router.startup import StartedRouter, start
from penstock.wire.messages import StampRow

pytestmark = pytest.mark.process

RENEWED = "the spool was copied"
OLD = 7


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a spool with one partition under the old id, which then needs a new one."""
    made = Settings.model_validate(
        {
            "data_dir": tmp_path / "data",
            "runtime_dir": tmp_path / "run",
            "shards": 1,
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        }
    )
    first = start(made)
    take_id(first, OLD)
    entries: list[ControlEntry] = [
        first.recovered.ledger.new_partition_entry("topic", b"", 0),
        StampRowEntry(0, StampRow(OLD, 0, 0, 0), "new_partition"),
    ]
    for entry in entries:
        _ = first.spool.append(entry)
        first.recovered.ledger.apply(entry)
    sync(first)
    first.identity.require_new_producer_id(RENEWED)
    kill(first)
    return made


def take_id(router: StartedRouter, producer_id: int) -> None:
    """What a router does when the brokers give an id."""
    router.identity.set_producer_id(producer_id)
    router.leases.set_producer_id(producer_id)


def write(router: StartedRouter) -> None:
    router.spool.write()


def sync(router: StartedRouter) -> None:
    write(router)
    while router.spool.start_sync():
        _ = router.spool.finish_sync()


def nothing(_router: StartedRouter) -> None:
    pass


def kill(router: StartedRouter) -> None:
    """What is staged is lost, what is written stays."""
    router.spool.close(clean=False)
    router.identity.close()


@pytest.mark.parametrize("before_the_kill", [nothing, write])
def test_an_id_whose_rows_are_not_on_disk_is_asked_for_again(
    settings: Settings, before_the_kill: Callable[[StartedRouter], None]
) -> None:
    router = start(settings)
    take_id(router, 99)
    before_the_kill(router)
    kill(router)

    again = start(settings)

    assert (again.identity.producer_id, again.identity.new_producer_id_reason) == (None, RENEWED)
    assert again.leases.needs_producer_id
    take_id(again, 100)
    assert [row.producer_id for row in again.recovered.ledger.by_number[0].rows] == [100]
    kill(again)


def test_an_id_whose_rows_are_on_disk_is_kept(settings: Settings) -> None:
    router = start(settings)
    take_id(router, 99)
    sync(router)
    kill(router)

    again = start(settings)

    assert (again.identity.producer_id, again.identity.new_producer_id_reason) == (99, None)
    assert [row.producer_id for row in again.recovered.ledger.by_number[0].rows] == [99]
    kill(again)
