"""The right to write a topic is taken away and given back while records flow: nothing is lost, and whoever waits is told why."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

import pytest

from tests.harness.checker import Figures, judge
from tests.harness.daemon import Daemon
from tests.harness.ledger import Kind, Ledger, Level
from tests.harness.load import Load
from tests.harness.load_client import Job
from tests.harness.processes import wait_until
from tests.harness.readers import read_topic
from tests.harness.secure_kafka import USER, SecureKafka, Way

RATE: Final = 400
RECORDS: Final = 2_400
"""Six seconds: rights are away for the second quarter or longer, and what comes afterwards is taken again."""
DONE_S: Final = 90.0
ALARM_S: Final = 30.0
KINDS: Final = ("direct", "block", "park")


class Run(NamedTuple):
    """What became of one topic's records."""

    figures: Figures
    ledger: Ledger
    others: Figures
    """Of the topic beside it, whose rights stayed."""
    parked: int
    said: str
    """By /healthz, while the right was away."""


def alarms(daemon: Daemon) -> list[str]:
    """The reasons for which partitions wait."""
    return [alarm["reason"] for alarm in json.loads(daemon.get("/stats")[1])["alarms"]]


def count(daemon: Daemon, word: str) -> int:
    """One figure of /stats about records."""
    found = json.loads(daemon.get("/stats")[1])["records"][word]
    assert isinstance(found, int)
    return found


@pytest.fixture(scope="module")
def runs(secure_kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """The direct producer, a daemon that blocks and one that parks, side by side: each with a topic of its own and another."""
    secure = secure_kafka
    folder = tmp_path_factory.mktemp("rights")
    settings = secure.settings(Way.PLAIN)
    for kind in KINDS:
        for name in (f"rights-{kind}", f"rights-{kind}-other"):
            secure.allow(USER, secure.cluster.create_topic(name, 1))

    with ExitStack() as stack:
        daemons = {
            "block": stack.enter_context(Daemon(secure.bootstrap(Way.PLAIN), shards=1, kafka=settings)),
            "park": stack.enter_context(
                Daemon(
                    secure.bootstrap(Way.PLAIN),
                    shards=1,
                    kafka=settings,
                    sections={'topics."rights-*"': {"on_refusal": "park"}},
                )
            ),
        }
        for daemon in daemons.values():
            daemon.start(ready=False)
        for daemon in daemons.values():
            daemon.wait_ready()

        def job(kind: str, topic: str) -> Job:
            return Job(
                through="direct" if kind == "direct" else "penstock",
                address=secure.bootstrap(Way.PLAIN) if kind == "direct" else str(daemons[kind].socket_path),
                client=topic,
                topic=topic,
                ledger=str(folder / f"{topic}.ledger"),
                records=RECORDS,
                rate=RATE,
                settings=settings if kind == "direct" else {},
            )

        jobs = [job(kind, f"rights-{kind}{end}") for kind in KINDS for end in ("", "-other")]
        with Load(jobs, folder, together=True) as load:
            load.wait_sent(len(jobs) * RECORDS // 4)
            for kind in KINDS:
                secure.forbid(USER, f"rights-{kind}")
            _ = wait_until(lambda: "refused" in alarms(daemons["block"]), seconds=ALARM_S, what="an alarm tells of it")
            _ = wait_until(lambda: count(daemons["park"], "dead_lettered"), seconds=ALARM_S, what="records are parked")
            said = {kind: daemon.get("/healthz")[1] for kind, daemon in daemons.items()}
            load.wait_sent(len(jobs) * RECORDS // 2)
            for kind in KINDS:
                secure.allow(USER, f"rights-{kind}")
            load.wait_done(seconds=DONE_S)
        ledgers = {ledger.client: ledger for ledger in load.ledgers()}

        def judged(topic: str) -> Figures:
            figures = judge([ledgers[topic]], read_topic(secure.cluster, topic))
            print(f"\n{topic}, Kafka {secure.cluster.version}: {figures.summary()}")
            return figures

        yield {
            kind: Run(
                judged(f"rights-{kind}"),
                ledgers[f"rights-{kind}"],
                judged(f"rights-{kind}-other"),
                count(daemons[kind], "dead_lettered") if kind in daemons else 0,
                said.get(kind, ""),
            )
            for kind in KINDS
        }


def assert_some_were_refused(run: Run) -> None:
    """Every record has a definite end: acknowledged and in the topic, or refused and not in it. The last ones were taken again."""
    figures = run.figures
    assert figures.wrong() == []
    assert figures.unknown == 0
    assert 0 < figures.failed < RECORDS
    assert figures.found == figures.acknowledged[Level.DELIVERED] == RECORDS - figures.failed
    assert [outcome.kind for outcome in run.ledger.frames[RECORDS - 1].outcomes] == [Kind.OK]


def test_the_direct_producer_fails_what_it_may_not_write_and_goes_on_when_it_may(runs: dict[str, Run]) -> None:
    run = runs["direct"]
    assert_some_were_refused(run)
    codes = {outcome.code for _, outcome in run.ledger.outcomes() if outcome.kind is Kind.FAIL}
    print(codes)
    assert codes <= {"TOPIC_AUTHORIZATION_FAILED", "forbidden"}
    run.others.assert_clean()


def test_a_daemon_that_blocks_keeps_the_records_and_delivers_them_all_when_it_may(runs: dict[str, Run]) -> None:
    run = runs["block"]
    run.figures.assert_clean()
    assert "TOPIC_AUTHORIZATION_FAILED" in run.said
    run.others.assert_clean()


def test_a_daemon_that_parks_puts_into_the_dead_letters_what_it_refuses(runs: dict[str, Run]) -> None:
    run = runs["park"]
    assert_some_were_refused(run)
    assert run.parked == run.figures.failed
    run.others.assert_clean()
