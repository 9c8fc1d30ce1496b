"""A broker's quotas slow the direct producer and the daemon down; nothing fails, and nothing is lost."""

from contextlib import ExitStack
from typing import Final, NamedTuple

import pytest

from tests.harness.checker import Figures, judge
from tests.harness.daemon import Daemon
from tests.harness.ledger import Ledger
from tests.harness.load import Load
from tests.harness.load_client import Job
from tests.harness.readers import read_topic
from tests.harness.records import Shape
from tests.harness.secure_kafka import LIMITED, OPEN, SecureKafka, Way

VALUE_BYTES: Final = 1_000
RATE: Final = 200
RECORDS: Final = 400
BYTES_A_SECOND: Final = 60_000
"""Of the 200,000 that are offered."""
PERCENT: Final = 1.0
"""A hundredth of one thread: 10 ms a second, and a request costs the broker some tenths of a millisecond."""
DONE_S: Final = 90.0
CASES: Final = tuple(
    zip(
        [
            (quota, through)
            for quota in ("producer_byte_rate", "request_percentage")
            for through in ("direct", "penstock")
        ],
        LIMITED,
        strict=True,
    )
)


class Run(NamedTuple):
    """What became of one limited user's records."""

    figures: Figures
    took_s: float
    throttled_ms: int
    """Of an average request, by the broker's own account."""


def took_s(ledger: Ledger) -> float:
    """From the first call to the last answer."""
    begin = min(frame.sent_at for frame in ledger.frames.values())
    return max(outcome.at for _, outcome in ledger.outcomes()) - begin


@pytest.fixture(scope="module")
def runs(secure_kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Run]:
    """Four users at once, each with a quota of its own."""
    secure = secure_kafka
    folder = tmp_path_factory.mktemp("quotas")
    for (quota, _), user in CASES:
        secure.limit(user, quota, BYTES_A_SECOND if quota == "producer_byte_rate" else PERCENT)
    for _, user in CASES:
        _ = secure.cluster.create_topic(OPEN + user, 1)
    with ExitStack() as stack:
        # As the daemon's own default: what waits for its turn goes out together.
        plain = {"compression.type": "none", "linger.ms": "0", "batch.size": "262144"}
        daemons = {
            user: stack.enter_context(
                Daemon(
                    secure.bootstrap(Way.PLAIN),
                    shards=1,
                    kafka={**secure.settings(Way.PLAIN, user=user), "compression.type": "none", "linger.ms": 0},
                )
            )
            for (_, through), user in CASES
            if through == "penstock"
        }
        for daemon in daemons.values():
            daemon.start(ready=False)
        for daemon in daemons.values():
            daemon.wait_ready()
        jobs = [
            Job(
                through=through,
                address=secure.bootstrap(Way.PLAIN) if through == "direct" else str(daemons[user].socket_path),
                client=user,
                topic=OPEN + user,
                ledger=str(folder / f"{user}.ledger"),
                records=RECORDS,
                rate=RATE,
                shape=Shape(value_bytes=VALUE_BYTES),
                settings={**secure.settings(Way.PLAIN, user=user), **plain} if through == "direct" else {},
            )
            for (_, through), user in CASES
        ]
        with Load(jobs, folder, together=True) as load:
            load.wait_done(seconds=DONE_S)
        ledgers = {ledger.client: ledger for ledger in load.ledgers()}
        kinds = {"producer_byte_rate": "Produce", "request_percentage": "Request"}
        found = {
            case: Run(
                judge([ledgers[user]], read_topic(secure.cluster, OPEN + user)),
                took_s(ledgers[user]),
                secure.jmx.throttled_ms(user, kinds[case[0]]),
            )
            for case, user in CASES
        }
    for (quota, _), user in CASES:
        secure.limit(user, quota, None)
    for (quota, through), run in found.items():
        print(
            f"\n{quota}, {through}, Kafka {secure.cluster.version}: {run.took_s:.1f} s, held up {run.throttled_ms} ms a request, {run.figures.summary()}"
        )
    return found


@pytest.mark.parametrize("case", [case for case, _ in CASES], ids="-".join)
def test_whoever_has_a_quota_is_slowed_down_and_everything_arrives(
    runs: dict[tuple[str, str], Run], case: tuple[str, str]
) -> None:
    run = runs[case]
    run.figures.assert_clean()
    assert run.throttled_ms > 0
    # Some record waited for as long as an average request was held up. How long all of them take says little: what waits goes out
    # together, and nobody waits for the end of what the last request has cost.
    assert run.figures.longest_wait_s * 1000 >= run.throttled_ms / 2
