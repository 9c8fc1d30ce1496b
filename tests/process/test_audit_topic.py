"""The audit topic of real processes: what it says is what lies in the other topics, whatever dies meanwhile."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from penstock.wire.audit_records import CLOSED, RUNNING

from tests.harness.audit_topic import TOPIC, check_balance, read_audit
from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until
from tests.harness.readers import read_topic
from tests.harness.resender import Resender
from tests.harness.stack import Stack
from tests.harness.wall_clock import WallClock

pytestmark = pytest.mark.process
AUDIT = {"interval_s": 0.2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2) as found:
        found.create_topic(TOPIC, partitions=3)
        yield found


def values_of(seq: int, count: int = 5) -> list[bytes]:
    return [b"%d:%d" % (seq, row) for row in range(count)]


def audit_of(stack: Stack) -> dict[str, Any]:
    return dict(stack.ask("stats")["audit"])


def stop(stack: Stack) -> None:
    assert stack.stop_router() == 0
    for shard in stack.shards.values():
        assert shard.wait(60) == 0


def test_every_record_is_told_and_an_orderly_stop_closes_the_books(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("plain", partitions=3)
    with Stack(cluster.bootstrap, shards=2, audit=AUDIT) as stack:
        with stack.session("app") as session:
            for seq in range(20):
                session.send("plain", values_of(seq), keys=[b"%d" % row for row in range(5)], seq=seq)
            for seq in range(20):
                assert session.acked(seq).level == 2
        incarnation = audit_of(stack)["incarnation"]
        stop(stack)
        told = read_audit(cluster)
        heartbeat = told.heartbeats()[incarnation]
        assert heartbeat.state == CLOSED
        assert heartbeat.settled_before == heartbeat.closed_before
        assert check_balance(told, "plain", list(read_topic(cluster, "plain"))) == {incarnation: 100}
        assert told.intakes(TOPIC) == []
        stack.wait_ready()
        running = wait_until(
            lambda: read_audit(cluster).heartbeats()[incarnation].state == RUNNING,
            seconds=10,
            what="the heartbeat says that the daemon runs again",
        )
        assert running
        records = stack.ask("stats")["records"]
        assert (records["received"], records["accepted"], records["pending"]) == (0, 0, 0)


def test_the_last_heartbeat_does_not_linger(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("lingering", partitions=1)
    with Stack(cluster.bootstrap, shards=1, kafka={"linger.ms": 60_000}, audit=AUDIT) as stack:
        with stack.session("app") as session:
            assert session.acked(session.send("lingering", values_of(0), seq=0, level=1)).level == 1
        incarnation = audit_of(stack)["incarnation"]
        stop(stack)
    assert read_audit(cluster).heartbeats()[incarnation].state == CLOSED


def test_kills_of_router_and_shards_leave_books_that_balance(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("killed", partitions=3)
    frames = 300
    with Stack(cluster.bootstrap, shards=2, kafka={"linger.ms": 1}, audit=AUDIT) as stack:
        client = Resender(stack.socket_path, "app", "killed")
        for seq in range(frames):
            client.add(seq, values_of(seq), [b"%d" % (seq % 7), *(b"%d" % row for row in range(4))])
        kills = {
            40: lambda: stack.kill_shard(0),
            90: stack.kill_router,
            150: lambda: (stack.kill_shard(0), stack.kill_shard(1)),
            200: lambda: (stack.kill_router(), stack.kill_shard(0), stack.kill_shard(1)),
            230: stack.kill_router,
        }

        def step(answered: int) -> None:
            for at in [at for at in kills if at <= answered]:
                kills.pop(at)()
            stack.revive()

        client.run(seconds=60, step=step)
        client.close()
        assert not kills
        incarnation = audit_of(stack)["incarnation"]
        stop(stack)
        told = read_audit(cluster)
        assert told.heartbeats()[incarnation].state == CLOSED
        assert check_balance(told, "killed", list(read_topic(cluster, "killed"))) == {incarnation: frames * 5}


def test_a_missing_topic_is_an_alarm_until_it_is_made_and_then_everything_is_told() -> None:
    with EmbeddedCluster(1) as cluster:
        cluster.create_topic("early", partitions=2)
        with Stack(cluster.bootstrap, shards=1, audit=AUDIT) as stack, stack.session("app") as session:
            assert session.acked(session.send("early", values_of(0))).level == 2
            shown = wait_until(
                lambda: audit_of(stack) if audit_of(stack)["state"] == "missing" else None,
                seconds=20,
                what="the alarm of the missing topic",
            )
            assert "penstock.audit does not exist" in shown["last_error"]
            assert shown["records"]["accepted"] == 0
            assert stack.log_path.read_text().count("audit_topic_missing") == 1
            refused = session.answer(session.send(TOPIC, [b"forged"]))
            assert refused.code == "not_allowed"
            cluster.create_topic(TOPIC, partitions=1)
            _ = wait_until(
                lambda: audit_of(stack)["records"]["delivered"] > 0,
                seconds=30,
                what="the topic is found and written to",
            )
            incarnation = audit_of(stack)["incarnation"]
            stop(stack)
            told = read_audit(cluster)
            assert check_balance(told, "early", list(read_topic(cluster, "early"))) == {incarnation: 5}
            assert told.heartbeats()[incarnation].state == CLOSED


def test_an_orderly_stop_is_not_held_up_where_there_is_no_audit_topic() -> None:
    with EmbeddedCluster(1) as cluster:
        cluster.create_topic("alone", partitions=1)
        with Stack(cluster.bootstrap, shards=1, audit={**AUDIT, "stop_wait_ms": 60_000}) as stack:
            with stack.session("app") as session:
                assert session.acked(session.send("alone", values_of(0))).level == 2
            assert stack.stop_router(seconds=10) == 0


def test_refused_and_parked_records_are_told_with_their_reasons(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("parked", partitions=1, config={"max.message.bytes": "20000"})
    with Stack(cluster.bootstrap, shards=1, audit=AUDIT) as stack:
        with stack.session("app") as session:
            # What the brokers take at most is asked for some time after a topic is met.
            _ = session.answer(session.send("parked", [b"before", b"x" * 900_000, b"behind"]))
            refused = session.answer(session.send("parked", [b"a", b"b"], headers=[["penstock", b"forged"], None]))
            assert refused.code == "reserved_header"
        incarnation = audit_of(stack)["incarnation"]
        stop(stack)
        told = read_audit(cluster)
        [intake] = told.intakes("parked")
        assert intake.refused == {"reserved_header": 2}
        assert (intake.accepted, intake.settled, intake.ids) == (3, True, True)
        assert [tuple(hole) for hole in intake.holes] == [(0, 1, 2, "parked")]
        assert check_balance(told, "parked", list(read_topic(cluster, "parked"))) == {incarnation: 2}
        assert told.heartbeats()[incarnation].state == CLOSED


def test_a_topic_without_ids_is_counted_and_says_so(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("counted", partitions=2)
    with Stack(cluster.bootstrap, shards=1, audit=AUDIT, topics={"counted": {"audit": False}}) as stack:
        with stack.session("app") as session:
            assert session.acked(session.send("counted", values_of(0))).level == 2
        stop(stack)
        [intake] = read_audit(cluster).intakes("counted")
        assert (intake.ids, intake.accepted, intake.settled) == (False, 5, True)
        assert all(found.numbered is None for found in read_topic(cluster, "counted"))


def test_a_copied_spool_counts_under_an_incarnation_of_its_own_and_says_nothing_of_the_old_one(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster.create_topic("copied", partitions=1)
    with Stack(cluster.bootstrap, shards=1, audit=AUDIT, data_dir=tmp_path / "first") as stack:
        with stack.session("app") as session:
            assert session.acked(session.send("copied", values_of(0))).level == 2
        first = audit_of(stack)["incarnation"]
        stop(stack)
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    before = len([one for one in read_audit(cluster).records if one.incarnation == first])
    with Stack(cluster.bootstrap, shards=1, audit=AUDIT, data_dir=tmp_path / "second") as stack:
        with stack.session("app") as session:
            assert session.acked(session.send("copied", values_of(1), seq=1)).level == 2
        second = audit_of(stack)["incarnation"]
        stop(stack)
    told = read_audit(cluster)
    assert second != first
    assert len([one for one in told.records if one.incarnation == first]) == before
    assert check_balance(told, "copied", list(read_topic(cluster, "copied"))) == {first: 5, second: 5}
    assert told.heartbeats()[first].state == told.heartbeats()[second].state == CLOSED


def test_a_clock_that_is_set_back_by_hours_makes_minutes_of_another_era(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster.create_topic("stepped", partitions=1)
    clock = WallClock(tmp_path)
    prefix = ["env", *(f"{name}={value}" for name, value in clock.environment.items())]
    with Stack(cluster.bootstrap, shards=1, audit=AUDIT, router_prefix=prefix) as stack:
        with stack.session("app") as session:
            for seq, step_s in enumerate((0, 90, -600, -7_200, 30, 7_200, -7_200)):
                clock.step(step_s)
                assert session.acked(session.send("stepped", values_of(seq), seq=seq)).level == 2
        incarnation = audit_of(stack)["incarnation"]
        stop(stack)
        told = read_audit(cluster)
        assert check_balance(told, "stepped", list(read_topic(cluster, "stepped"))) == {incarnation: 35}
        intakes = told.intakes("stepped")
        assert {intake.era for intake in intakes} == {0, 1, 2}
        assert told.heartbeats()[incarnation].era == 2
        # Ten minutes back are waited for: they are counted into the minute that had come by then.
        assert sum(intake.accepted for intake in intakes if intake.era == 0) == 15
        first = min(intake.minute for intake in intakes if intake.era == 0)
        assert all(intake.minute >= first for intake in intakes if intake.era == 0)


def test_what_an_outage_leaves_pending_is_told_as_pending_and_settles_once_it_is_over() -> None:
    with EmbeddedCluster(1, folders=True) as cluster:
        cluster.create_topic("later", partitions=2)
        cluster.create_topic(TOPIC, partitions=1)
        with Stack(cluster.bootstrap, shards=1, audit=AUDIT, timeouts={"drain_ms": 500}) as stack:
            with stack.session("app") as session:
                assert session.acked(session.send("later", values_of(0), seq=0)).level == 2
                assert wait_until(
                    lambda: audit_of(stack)["records"]["delivered"], seconds=20, what="a first heartbeat in Kafka"
                )
                cluster.nodes[0].kill()
                for seq in range(1, 11):
                    assert session.acked(session.send("later", values_of(seq), level=1, seq=seq)).level == 1
            # One round at most waits for Kafka, however long that takes.
            waiting = wait_until(
                lambda: audit_of(stack)["records"]["pending"], seconds=10, what="a round that waits for Kafka"
            )
            assert waiting <= 10
            incarnation = audit_of(stack)["incarnation"]
            assert stack.stop_router() == 0
            cluster.nodes[0].start()
            told = read_audit(cluster)
            assert told.heartbeats()[incarnation].state == RUNNING
            stack.wait_ready()
            _ = wait_until(lambda: stack.ask("stats")["records"]["pending"] == 0, seconds=20, what="delivery")
            stop(stack)
            told = read_audit(cluster)
            assert check_balance(told, "later", list(read_topic(cluster, "later"))) == {incarnation: 55}
            assert told.heartbeats()[incarnation].state == CLOSED


def test_a_stop_behind_an_outage_closes_the_books_of_brokers_that_are_back() -> None:
    with EmbeddedCluster(1, folders=True) as cluster:
        cluster.create_topic("calm", partitions=2)
        cluster.create_topic(TOPIC, partitions=1)
        kafka = {"reconnect.backoff.ms": 5_000, "reconnect.backoff.max.ms": 5_000}
        with Stack(cluster.bootstrap, shards=1, audit={**AUDIT, "stop_wait_ms": 25_000}, kafka=kafka) as stack:
            with stack.session("app") as session:
                assert session.acked(session.send("calm", values_of(0), seq=0)).level == 2
            cluster.nodes[0].kill()
            _ = wait_until(
                lambda: not stack.ask("stats")["metadata"]["connected"], seconds=20, what="a lost connection"
            )
            cluster.nodes[0].start()
            incarnation = audit_of(stack)["incarnation"]
            # Nothing is left to deliver, and it did not look since.
            assert not stack.ask("stats")["metadata"]["connected"]
            stop(stack)
            assert read_audit(cluster).heartbeats()[incarnation].state == CLOSED


def test_where_the_audit_is_off_nothing_is_told_and_records_carry_no_ids(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("silent", partitions=1)
    with Stack(cluster.bootstrap, shards=1, audit={"enabled": False}) as stack:
        with stack.session("app") as session:
            assert session.acked(session.send("silent", values_of(0))).level == 2
        assert audit_of(stack) == {"enabled": False, "state": "off", "last_error": None}
        stop(stack)
    assert [found.numbered for found in read_topic(cluster, "silent")] == [None] * 5
    assert read_audit(cluster).intakes("silent") == []
