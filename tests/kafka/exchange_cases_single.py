"""More exchanges with one real node: who gets a producer id, what retention deletes, and what a topic's absence looks like.

Steps besides those of `exchange_cases`:

    init, and topic: another name                                gone, back: a topic is deleted; it is made again
    guard: rules so that nothing is free any more                retained: wait until the log starts at `offset`
    acl       resource (TOPIC, CLUSTER), name, prefix as well
"""

from tests.kafka.exchange_cases import EIGHT, HOUR, LAST, PID, START, TELL, Case, Step, do, put

INIT = do("init")
MINUTE_MS = "60000"
OLD = [put(0, n * 10, 10, age_ms=HOUR) for n in range(8)]


def granted() -> list[Case]:
    """Cases for a cluster that looks at rights and keeps no rule from case to case: who gets a producer id."""

    def may(operation: str, *, who: str = "me", deny: bool = False, **more: object) -> Step:
        return do("acl", who=who, operation=operation, deny=deny, **more)

    cluster = {"resource": "CLUSTER"}
    scripts: dict[str, list[Step]] = {
        "no right at all": [],
        "IDEMPOTENT_WRITE on the cluster": [may("IDEMPOTENT_WRITE", **cluster)],
        "IDEMPOTENT_WRITE for another": [may("IDEMPOTENT_WRITE", who="other", **cluster)],
        "WRITE on a topic": [may("WRITE")],
        "WRITE on a topic that is not there": [may("WRITE", name="nowhere")],
        "WRITE on a prefix": [may("WRITE", name="now", prefix=True)],
        "WRITE on every topic": [may("WRITE", name="*")],
        "WRITE for another": [may("WRITE", who="other")],
        "READ on a topic": [may("READ")],
        "WRITE on a topic that is denied too": [may("WRITE"), may("WRITE", deny=True)],
        "WRITE on two topics, one denied": [may("WRITE"), may("WRITE", deny=True), may("WRITE", name="nowhere")],
        "WRITE on a topic under a denied prefix": [
            may("WRITE", name="nowhere"),
            may("WRITE", name="now", prefix=True, deny=True),
        ],
        "WRITE on a prefix, one topic of it denied": [
            may("WRITE", name="now", prefix=True),
            may("WRITE", name="nowhere", deny=True),
        ],
        "WRITE on a topic, every topic denied": [may("WRITE"), may("WRITE", name="*", deny=True)],
        "WRITE on a topic, IDEMPOTENT_WRITE denied": [may("WRITE"), may("IDEMPOTENT_WRITE", deny=True, **cluster)],
    }
    found = [
        Case(f"an id with {name}", [INIT, do("guard"), INIT, *rules, INIT, put(0, 0)])
        for name, rules in scripts.items()
    ]
    nowhere = {"topic": "nowhere"}
    asked = [put(0, 0), START, TELL]
    free = may("WRITE", name="nowhere")
    steps = [put(0, 0), *(one | nowhere for one in asked), do("guard"), *asked, *(one | nowhere for one in asked), free]
    found.append(Case("forbidden and gone look alike", [*steps, *(one | nowhere for one in asked)]))
    return found


def retained() -> list[Case]:
    """Cases for a node that looks every second whether something is to be deleted."""
    found: list[Case] = []
    by_time = do("alter", name="retention.ms", value=MINUTE_MS)
    by_size = do("alter", name="retention.bytes", value="1")
    # Behind a record that is so much younger a new file begins, and the one before may go.
    roll = {"segment.ms": MINUTE_MS}
    other = put(0, 0, pid=PID + 1)
    asked = [START, TELL, *OLD[2:], put(0, 990)]
    found.append(Case("retention: all gone while it runs", [*OLD, by_time, do("retained", offset=80), *asked]))
    for clean in (True, False):
        how = "clean" if clean else "hard"
        again = do("restart", node=1, clean=clean)
        noted = do("sleep", ms=2000)
        lost = [START, TELL, put(0, 990), TELL]
        # Where nothing is left, brokers name one epoch or another with the start of the log: so that is not asked.
        emptied = [*OLD, by_time, do("retained", offset=80), noted, again]
        found.append(Case(f"retention, {how} restart: all gone", [*emptied, *lost[1:]]))
        found.append(
            Case(
                f"retention, {how} restart: all gone, then another id",
                [*OLD, by_time, do("retained", offset=80), other, noted, again, *lost],
            )
        )
        for kind, rule in (("time", by_time), ("size", by_size)):
            steps = [*OLD, other, rule, do("retained", offset=80), START, TELL, OLD[7], noted, again, *lost]
            found.append(Case(f"retention by {kind}, {how} restart: another id left", steps, roll))
        own = [*OLD, put(0, 80), by_time, do("retained", offset=80), noted, again]
        found.append(
            Case(
                f"retention, {how} restart: a batch of its own left",
                [*own, START, TELL, OLD[7], put(0, 80), put(0, 990), put(0, 81)],
                roll,
            )
        )
    return found


def more_of_one_node() -> list[Case]:
    """Cases for a cluster of one node with default clocks."""
    return [
        Case(
            "a split whose parent is not in the log", [put(0, 0, 5), put(0, 15, 5), put(0, 5, 5), put(0, 10, 5), TELL]
        ),
        Case(
            "a wrap across a restart",
            [put(0, LAST - 2, 7), do("restart", node=1, clean=False), put(0, LAST - 2, 7), put(0, 5), put(0, 4), TELL],
        ),
        Case(
            "five in flight across a wrap",
            [
                *(put(0, first) for first in (LAST - 1, LAST, 0, 1, 2)),
                *(put(0, first) for first in (LAST - 1, LAST, 0, 1, 2, 4, 3)),
            ],
        ),
        Case(
            "a topic that is gone",
            [*EIGHT[:2], do("gone"), EIGHT[1], TELL, START, do("back"), EIGHT[1], EIGHT[0], TELL],
        ),
        Case(
            "a duplicate first in a topic made again",
            [*EIGHT[:3], do("recreate"), EIGHT[1], EIGHT[1], EIGHT[2], EIGHT[0]],
        ),
        Case(
            "an epoch from before the state was lost",
            [
                put(3, 0),
                do("delete", offset=-1),
                do("sleep", ms=2000),
                do("restart", node=1, clean=True),
                put(1, 5),
                TELL,
            ],
        ),
    ]


def gone_by_id() -> list[Case]:
    """A case for Produce 13: a topic that is not there."""
    by_id = {"version": 13, "life": 0}
    return [Case("by id, gone", [EIGHT[0] | by_id, do("gone"), EIGHT[0] | by_id, do("back"), EIGHT[0] | by_id])]
