"""A spool that cannot be written any more ends the router with one clear line, wherever it notices."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.daemon.spool.segment_files import segment_numbers, segment_path

from tests.harness.embedded import EmbeddedCluster
from tests.harness.raw_session import RawSession
from tests.harness.stack import Stack

pytestmark = pytest.mark.process

SPOOL = 74


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1, folders=True) as found:
        yield found


def break_identity(stack: Stack) -> None:
    """The file cannot be opened for writing any more."""
    path = stack.settings.spool_dir / "identity"
    path.unlink()
    path.mkdir()


def reason_of_the_end(log: Path) -> str:
    text = log.read_text()
    assert "Traceback" not in text
    lines = [json.loads(line) for line in text.splitlines() if '"spool_failed"' in line]
    (line,) = lines
    return str(line["reason"])


def send_much(session: RawSession) -> None:
    """More than a segment takes, without waiting for answers."""
    for seq in range(20):
        _ = session.send("broken", [b"x" * 10_000] * 50, level=0, seq=seq)


def test_an_orderly_stop_that_cannot_be_marked_is_told(cluster: EmbeddedCluster) -> None:
    with Stack(cluster.bootstrap, shards=1) as stack:
        break_identity(stack)

        assert stack.stop_router() == SPOOL

        assert "identity cannot be written" in reason_of_the_end(stack.log_path)
        assert '"router_stopped"' in stack.log_path.read_text()


def test_a_producer_id_that_cannot_be_kept_is_told(cluster: EmbeddedCluster) -> None:
    cluster.nodes[0].kill()
    with Stack(cluster.bootstrap, shards=1) as stack:
        break_identity(stack)
        cluster.nodes[0].start()

        assert stack.router is not None
        assert stack.router.wait(60) == SPOOL
        assert "identity cannot be written" in reason_of_the_end(stack.log_path)


def test_a_frame_whose_segment_cannot_be_begun_ends_the_router_clearly(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("broken", partitions=1)
    with Stack(cluster.bootstrap, shards=1, spool={"segment_bytes": 4 << 20}) as stack, stack.session() as session:
        newest = max(segment_numbers(stack.settings.spool_dir))
        segment_path(stack.settings.spool_dir, newest + 1).mkdir()
        assert stack.router is not None

        with pytest.raises(ConnectionError):
            send_much(session)

        assert stack.router.wait(60) == SPOOL
        assert "no segment can be begun" in reason_of_the_end(stack.log_path)
