"""The conversations of transactional clients that are recorded with real brokers: see tests/harness/transaction_talk.py for the steps.

Beside those: settle (wait until nothing is being ended), sleep ms, restart clean, exhaust (use up the epochs of the id), acl (client
`caller` or others; resource, name, operation, deny). A step with `race` may be answered as it comes and is not asked again.
"""

from typing import Any, NamedTuple

Step = dict[str, Any]
SETTLE: Step = {"do": "settle"}
SETTLE_IF: Step = {"do": "sleep", "ms": 500}
V1, V2 = 11, 12


class Case(NamedTuple):
    """One conversation, on a topic and with transactional ids of its own."""

    name: str
    steps: list[Step]


def step(what: str, **more: Any) -> Step:
    return {"do": what} | more


def init(**more: Any) -> Step:
    return step("init", **more)


def add(epoch: int, **more: Any) -> Step:
    return step("add", epoch=epoch, **more)


def put(version: int, epoch: int, first: int, **more: Any) -> Step:
    return step("put", version=version, epoch=epoch, first=first, **more)


def end(version: int, epoch: int, *, commit: bool, **more: Any) -> Step:
    return step("end", version=4 if version == V1 else 5, epoch=epoch, commit=commit) | more


def look() -> list[Step]:
    return [step("state"), step("writers"), step("read"), step("end_of")]


def version_1() -> list[Case]:
    """Both brokers answer alike."""
    open_one = [init(), add(0), put(V1, 0, 0, count=2)]
    return [
        Case(
            "1: commit and abort, and both again",
            [
                *open_one, *look(), end(V1, 0, commit=True), SETTLE, *look(),
                end(V1, 0, commit=True), end(V1, 0, commit=False),
                add(0), put(V1, 0, 2), *look(), end(V1, 0, commit=False), SETTLE, *look(),
                end(V1, 0, commit=False), end(V1, 0, commit=True), step("read", isolated=False), step("read", offset=4),
                step("end_of", timestamp=0), step("end_of", timestamp=-3),
            ],
        ),
        Case(
            "1: a batch before its partition was added",
            [
                init(), put(V1, 0, 5), put(10, 0, 5), put(8, 0, 5), add(0), put(V1, 0, 7), put(V1, 0, 6), put(V1, 0, 5),
                put(V1, 0, 6), end(V1, 0, commit=True), SETTLE, *look(),
            ],
        ),
        Case("1: any first sequence without state", [init(), add(0), put(V1, 0, 9), put(V1, 0, 11), put(V1, 0, 10)]),
        Case(
            "1: late copies after an abort",
            [
                *open_one, put(V1, 0, 2), end(V1, 0, commit=False), SETTLE, put(V1, 0, 2), put(V1, 0, 3), add(0),
                put(V1, 0, 2), put(V1, 0, 3), end(V1, 0, commit=True), SETTLE, *look(),
            ],
        ),
        Case(
            "1: plain batches of the same producer",
            [
                init(), put(V1, 0, 0, plain=True), add(0), put(V1, 0, 1, plain=True), put(V1, 0, 2), *look(),
                put(V1, 0, 3, plain=True), put(V1, 0, 2, plain=True), put(V1, 0, 5, plain=True), put(V1, 0, 3),
                end(V1, 0, commit=True), SETTLE, put(V1, 0, 4, plain=True), *look(),
            ],
        ),
        Case(
            "1: a successor fences an open transaction",
            [
                *open_one, init(race=True), SETTLE, *look(), init(), step("state"), put(V1, 0, 2), put(V1, 0, 0, count=2),
                add(0), add(0, version=1), end(V1, 0, commit=True), step("end", version=1, epoch=0, commit=False),
                init(epoch=0), init(epoch=0, version=3), *look(), add(2), put(V1, 2, 0), end(V1, 2, commit=True), SETTLE, *look(),
            ],
        ),
        Case(
            "1: a successor begins behind a complete transaction",
            [
                *open_one, end(V1, 0, commit=True), SETTLE, init(), step("state"), add(1), put(V1, 1, 2), put(V1, 1, 0),
                put(V1, 0, 2), end(V1, 1, commit=False), SETTLE, *look(),
            ],
        ),
        Case(
            "1: strangers",
            [
                *open_one, add(0, id=99), end(V1, 0, commit=True, id=99), put(V1, 0, 0, id=99), add(1), put(V1, 1, 0),
                end(V1, 1, commit=True), add(0, txn="b"), end(V1, 0, commit=True, txn="b"), step("state", txn="b"),
                put(V1, 0, 2, nameless=True), put(V1, 0, 2, txn="b"), add(0, topics=["no-such-topic"]),
                add(0, topics=["no-such-topic", "__consumer_offsets"]), *look(),
            ],
        ),
        Case(
            "1: ends that nothing needs",
            [
                init(), end(V1, 0, commit=True), end(V1, 0, commit=False), step("state"), add(0), step("state"),
                end(V1, 0, commit=True), SETTLE, *look(), add(0), end(V1, 0, commit=False), SETTLE, *look(),
            ],
        ),
        Case(
            "init: what a producer thinks it has",
            [
                init(), init(epoch=0), init(epoch=0), init(epoch=1), init(epoch=0), init(epoch=7), init(epoch=2, id=98),
                init(epoch=2), init(epoch=-1, id=0, version=3), init(timeout_ms=0), init(timeout_ms=-1), init(timeout_ms=900_001),
                init(timeout_ms=900_000), step("state"), init(epoch=2, version=3), init(epoch=0, id=0, txn="b"),
            ],
        ),
        Case(
            "init: what a producer thinks it has, behind transactions",
            [
                init(), add(0), put(V1, 0, 0), end(V1, 0, commit=True), SETTLE, init(epoch=0), init(epoch=0), add(1),
                put(V1, 1, 0), init(epoch=1, race=True), SETTLE, step("state"), init(epoch=1), init(epoch=0), init(), step("state"),
            ],
        ),
        Case(
            "1: a hard restart inside of a transaction",
            [
                init(), add(0), put(V1, 0, 0), put(V1, 0, 1), put(V1, 0, 2), step("restart", clean=False), *look(),
                put(V1, 0, 2), put(V1, 0, 1), put(V1, 0, 3), end(V1, 0, commit=True), SETTLE, *look(),
            ],
        ),
        Case(
            "1: a clean restart behind aborted and committed transactions",
            [
                init(), add(0), put(V1, 0, 0), end(V1, 0, commit=False), SETTLE, add(0), put(V1, 0, 1), end(V1, 0, commit=True),
                SETTLE, step("restart", clean=True), *look(), end(V1, 0, commit=True), end(V1, 0, commit=False),
            ],
        ),
        Case(
            "1: two producers in one partition",
            [
                init(), init(txn="b"), add(0, id=0), put(V1, 0, 0, id=0), add(0, id=1, txn="b"), put(V1, 0, 0, id=1, txn="b"), *look(),
                end(V1, 0, commit=True, id=1, txn="b"), SETTLE | {"txn": "b"}, *look(), put(V1, 0, 1, id=0),
                end(V1, 0, commit=False, id=0), SETTLE, *look(), step("read", offset=1), step("read", offset=4),
            ],
        ),
    ]  # fmt: skip


def offsets_1() -> list[Case]:
    return [
        Case(
            "1: offsets in a transaction",
            [
                init(), step("fetched"), step("commit", epoch=0, offset=5), step("commit", epoch=0, offset=5, version=4),
                step("join", epoch=0), step("state"), step("commit", epoch=0, offset=5), step("fetched"),
                step("fetched", stable=True), step("plain_commit", offset=3), step("fetched"), step("fetched", stable=True),
                end(V1, 0, commit=True), SETTLE, step("fetched"), step("fetched", stable=True), step("state"),
                step("join", epoch=0), step("commit", epoch=0, offset=9), end(V1, 0, commit=False), SETTLE,
                step("fetched", stable=True), step("commit", epoch=0, offset=10), step("join", epoch=1),
                step("join", epoch=1, version=1), step("commit", epoch=1, offset=10),
            ],
        ),
        Case(
            "1: offsets that do not fit",
            [
                init(), step("join", epoch=0), step("commit", epoch=0, offset=5, partition=7),
                step("commit", epoch=0, offset=5, generation=3, member="m"), step("commit", epoch=0, offset=5, generation=-1, member="m"),
                step("plain_commit", offset=5, generation=3, member="m"), step("commit", epoch=0, offset=5),
                step("plain_commit", offset=5, generation=3, member="m"), step("commit", epoch=0, offset=5, generation=3, member="m"),
                init(race=True), SETTLE, init(), step("commit", epoch=0, offset=6), step("fetched", stable=True),
                step("join", epoch=0),
            ],
        ),
    ]  # fmt: skip


def members() -> list[Case]:
    """Groups with one member."""
    inside = {"generation": 1, "member": 0}
    return [
        Case(
            "group: one member commits and leaves",
            [
                step("beat", generation=0, member="x"), step("leave", member="x"), step("share", generation=0, member="x"),
                step("enter", member="x"), step("enter"), step("enter", member=0), step("share", **inside), step("share", **inside),
                step("beat", **inside), step("beat", generation=0, member=0), step("beat", generation=1, member="x"),
                step("plain_commit", offset=1, **inside), step("plain_commit", offset=2, generation=0, member=0),
                step("plain_commit", offset=2, generation=1, member="x"), step("plain_commit", offset=2),
                init(), step("join", epoch=0), step("commit", epoch=0, offset=3, generation=0, member=0),
                step("commit", epoch=0, offset=3, generation=1, member="x"), step("commit", epoch=0, offset=3, **inside),
                step("fetched"), step("fetched", stable=True), end(V1, 0, commit=True), SETTLE, step("fetched", stable=True),
                step("join", epoch=0), step("commit", epoch=0, offset=4), end(V1, 0, commit=True), SETTLE, step("fetched"),
                step("leave", member=0), step("leave", member=0), step("beat", **inside), step("plain_commit", offset=5, **inside),
                step("join", epoch=0), step("commit", epoch=0, offset=5, **inside), step("plain_commit", offset=6), step("fetched"),
                step("enter"), step("enter", member=1), step("beat", generation=3, member=1), step("plain_commit", offset=7, generation=3, member=1),
                step("share", generation=3, member=1), step("enter", member=1), step("share", generation=4, member=1), step("enter", kind="connect"),
                step("enter", session_ms=1),
            ],
        ),
        Case(
            "group: by clients of old",
            [step("enter", version=3), step("share", **inside), step("beat", **inside), step("leave", member=0)],
        ),
    ]  # fmt: skip


def version_2() -> list[Case]:
    """Of brokers from 4.0 on."""
    open_one = [init(), put(V2, 0, 0, count=2)]
    return [
        Case(
            "2: commit, again, late copies, the next epoch",
            [
                init(), put(V2, 0, 5), step("state"), put(V2, 0, 0), put(V2, 0, 1), put(V2, 0, 1), *look(), end(V2, 0, commit=True), SETTLE,
                *look(), end(V2, 0, commit=True), end(V2, 0, commit=False), put(V2, 0, 2), put(V2, 0, 1), put(V2, 0, 0),
                put(V2, 1, 1), put(V2, 1, 0), put(V2, 1, 1), *look(), end(V2, 1, commit=False), SETTLE, *look(),
                put(V2, 1, 2), end(V2, 1, commit=False), end(V2, 1, commit=True), end(V2, 0, commit=True), end(V2, 3, commit=True),
                step("read", offset=3), step("read", isolated=False),
            ],
        ),
        Case(
            "2: ends without partitions",
            [
                init(), end(V2, 0, commit=True), end(V2, 0, commit=False), SETTLE, *look(), end(V2, 0, commit=False), end(V2, 0, commit=True),
                end(V2, 1, commit=True), end(V2, 1, commit=False), SETTLE, step("state"), put(V2, 2, 0), end(V2, 2, commit=True), SETTLE,
                end(V2, 3, commit=True), end(V2, 3, commit=False), SETTLE, *look(),
            ],
        ),
        Case(
            "2: a hard restart inside of a transaction",
            [
                init(), put(V2, 0, 0), put(V2, 0, 1), put(V2, 0, 2), step("restart", clean=False), *look(), put(V2, 0, 2), put(V2, 0, 1),
                put(V2, 0, 3), end(V2, 0, commit=True), SETTLE, *look(),
            ],
        ),
        Case(
            "2: a clean restart behind transactions",
            [
                *open_one, end(V2, 0, commit=False), SETTLE, put(V2, 1, 0), end(V2, 1, commit=True), SETTLE,
                step("restart", clean=True), *look(), end(V2, 1, commit=True), put(V2, 1, 1), put(V2, 2, 1), put(V2, 2, 0),
            ],
        ),
        Case(
            "2: a successor fences an open transaction",
            [
                *open_one, init(race=True), SETTLE, *look(), end(V2, 0, commit=True), end(V2, 0, commit=False), init(), step("state"),
                put(V2, 0, 2), put(V2, 1, 0), end(V2, 0, commit=True), end(V2, 1, commit=True), put(V2, 2, 0), end(V2, 2, commit=True), SETTLE,
                *look(),
            ],
        ),
        Case(
            "2: a successor that names its epoch",
            [
                *open_one, init(epoch=0, race=True), SETTLE, step("state"), init(epoch=0), init(epoch=1), init(epoch=1), step("state"),
                init(), step("state"), put(V2, 3, 0), end(V2, 3, commit=True), SETTLE, init(epoch=3), init(epoch=4), init(epoch=4), step("state"),
            ],
        ),
        Case(
            "2: strangers and plain batches",
            [
                *open_one, end(V2, 0, commit=True, id=99), put(V2, 0, 0, id=99), put(V2, 1, 0), end(V2, 1, commit=True),
                end(V2, 0, commit=True, txn="b"), put(V2, 0, 2, nameless=True), put(V2, 0, 2, plain=True), put(V2, 0, 2, txn="b"),
                put(V2, 0, 3, plain=True), put(V2, 0, 2), end(V2, 0, commit=True), SETTLE, put(V2, 1, 0, plain=True), put(V2, 1, 1), *look(),
            ],
        ),
        Case(
            "2: two producers in one partition",
            [
                init(), init(txn="b"), put(V2, 0, 0, id=0), put(V2, 0, 0, id=1, txn="b"), *look(), end(V2, 0, commit=True, id=1, txn="b"),
                SETTLE | {"txn": "b"}, *look(), put(V2, 0, 1, id=0), end(V2, 0, commit=False, id=0), SETTLE, *look(),
            ],
        ),
        Case(
            "2: offsets in a transaction",
            [
                init(), step("commit", epoch=0, offset=5, version=5), step("state"), step("fetched", stable=True), step("fetched"),
                end(V2, 0, commit=True), SETTLE, step("fetched", stable=True), step("commit", epoch=0, offset=6, version=5),
                step("commit", epoch=1, offset=7, version=5), end(V2, 1, commit=False), SETTLE, step("fetched", stable=True),
                step("commit", epoch=2, offset=8, version=5, partition=7), step("state"), step("commit", epoch=2, offset=8, version=4),
            ],
        ),
        Case(
            "2: the last epochs",
            [
                init(), step("exhaust", until=32_765), put(V2, 32_765, 0), end(V2, 32_765, commit=True), SETTLE, step("state"),
                put(V2, 32_766, 0, id=0), end(V2, 32_766, commit=True, id=0), SETTLE, *look(), end(V2, 32_766, commit=True, id=0),
                end(V2, 32_766, commit=False, id=0), put(V2, 0, 0, id=1), end(V2, 0, commit=True, id=1), SETTLE, *look(),
                put(V2, 32_766, 1, id=0),
            ],
        ),
    ]  # fmt: skip


def mixed() -> list[Case]:
    return [
        Case(
            "2: from version 1 in the same epoch",
            [
                init(), add(0), put(V1, 0, 0), end(V1, 0, commit=True), SETTLE, put(V2, 0, 1), put(V2, 0, 2), *look(),
                end(V2, 0, commit=True), SETTLE, *look(), add(1), put(V1, 1, 1), put(V1, 1, 0), end(V1, 1, commit=True), SETTLE, *look(),
            ],
        ),
        Case(
            "2: behind a plain batch",
            [
                init(), put(V2, 0, 0, plain=True), put(V2, 0, 1), put(V2, 0, 2), end(V2, 0, commit=True), SETTLE, *look(),
                put(V2, 1, 0, plain=True), put(V2, 1, 1), put(V2, 1, 0), *look(),
            ],
        ),
    ]  # fmt: skip


def exhausted_1() -> list[Case]:
    return [
        Case(
            "1: the last epochs",
            [
                init(), step("exhaust", until=32_765), init(), init(), step("state"), add(0, id=1), put(V1, 0, 0, id=1),
                end(V1, 0, commit=True, id=1), SETTLE, add(32_766, id=0), end(V1, 32_766, commit=True, id=0), *look(),
            ],
        ),
        Case(
            "1: the last epochs, by one who names his",
            [
                init(), step("exhaust", until=32_765), init(epoch=32_765), init(epoch=32_766, id=0), init(epoch=32_766, id=0), step("state"),
                init(epoch=0, id=1), step("state"),
            ],
        ),
        Case(
            "1: the last epoch is fenced",
            [
                init(), step("exhaust", until=32_766), add(32_766), put(V1, 32_766, 0), init(race=True), SETTLE, *look(), init(), step("state"),
            ],
        ),
    ]  # fmt: skip


def rights(*, new: bool) -> list[Case]:
    """What each request needs: one right more at a time."""
    asked = [
        step("find"),
        step("find", kind=0),
        step("state"),
        add(0),
        put(V1, 0, 0),
        step("join", epoch=0),
        step("commit", epoch=0, offset=1),
        step("fetched"),
        step("plain_commit", offset=2),
        end(V1, 0, commit=True),
        SETTLE_IF,
        step("read"),
        step("end_of"),
        step("writers"),
    ]
    later = [put(V2, 0, 0), step("commit", epoch=0, offset=1, version=5)] if new else []
    first = [init(), step("guard"), *asked, *later]
    rules = {
        "DESCRIBE the id": [("TRANSACTIONAL_ID", "DESCRIBE")],
        "WRITE the id": [("TRANSACTIONAL_ID", "WRITE")],
        "WRITE the id and the topic": [("TRANSACTIONAL_ID", "WRITE"), ("TOPIC", "WRITE")],
        "WRITE the id, READ the group": [("TRANSACTIONAL_ID", "WRITE"), ("GROUP", "READ")],
        "WRITE the id, READ the group and the topic": [
            ("TRANSACTIONAL_ID", "WRITE"),
            ("GROUP", "READ"),
            ("TOPIC", "READ"),
        ],
        "DESCRIBE the group": [("GROUP", "DESCRIBE")],
    }
    return [
        Case("rights: none", first),
        *(
            Case(
                f"rights: {name}",
                [init(), step("guard"), *(step("acl", resource=kind, operation=what) for kind, what in given), *asked, *later],
            )
            for name, given in rules.items()
        ),
    ]  # fmt: skip


OLD = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
FORGETFUL = {
    "transactional.id.expiration.ms": "2000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
}


def timed_out(version: int) -> list[Case]:
    first = [add(0)] if version == V1 else []
    return [
        Case(
            f"{1 if version == V1 else 2}: open for too long",
            [
                init(timeout_ms=1000), *first, put(version, 0, 0), step("state"), step("sleep", ms=4000), *look(), put(version, 0, 1),
                end(version, 0, commit=True), end(version, 0, commit=False), init(epoch=0), init(), step("state"), *look(),
            ],
        ),
    ]  # fmt: skip


def forgotten() -> list[Case]:
    return [
        Case(
            "1: an id that nobody used for long",
            [
                init(), add(0), put(V1, 0, 0), end(V1, 0, commit=True), SETTLE, step("state"), step("sleep", ms=6000), step("state"),
                end(V1, 0, commit=True, id=0), add(0, id=0), put(V1, 0, 1, id=0), init(), step("state"),
            ],
        ),
    ]  # fmt: skip
