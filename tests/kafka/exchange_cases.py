"""The exchanges that are recorded with real brokers: requests in order, and what is done to the cluster between them.

Each case is a topic of its own with one partition. A step is a plain dictionary, so that it can be written down as it is:

    produce   data (hex), acks, version, timeout_ms, node        alter      name, value
    producers node                                               delete     offset
    offset    timestamp, epoch, node                             recreate   remember, forget
    epoch     asked, current, node                               restart    node, clean
    elect, freeze, thaw, kill, start, expelled: node                     sleep      ms
    acl       who (me, other), operation, deny
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tests.core.test_broker_batches import BROKEN
from tests.harness.batches import Head, Rec, batch, numbered

Step = dict[str, object]
PID = 4_000_000
LAST = (1 << 31) - 1
UNEXPECTED = -1
HOUR = 3_600_000


class Case(NamedTuple):
    """One case; times in its batches are given relative to the moment of recording."""

    name: str
    steps: list[Step]
    settings: Mapping[str, str] = MappingProxyType({})
    replicas: tuple[int, ...] = ()
    """Nodes that have one, the first leader in front; none named: all."""

    stricter: bool = False
    """The embedded broker refuses on purpose what Kafka takes, or trips over."""


class Made(NamedTuple):
    """A batch of an idempotent producer whose timestamp is known when it is sent only."""

    epoch: int
    first: int
    count: int
    pid: int = PID
    age_ms: int = 0

    def data(self, at_ms: int) -> bytes:
        return numbered(self.pid, self.epoch, self.first, self.count, at_ms - self.age_ms)


def put(epoch: int, first: int, count: int = 1, *, pid: int = PID, age_ms: int = 0, **more: object) -> Step:
    return {"do": "produce", "made": Made(epoch, first, count, pid, age_ms)} | more


def raw(data: bytes, **more: object) -> Step:
    return {"do": "produce", "data": data.hex()} | more


def do(what: str, **more: object) -> Step:
    return {"do": what} | more


TELL = do("producers")
END = do("offset", timestamp=-1)
START = do("offset", timestamp=-2)

SCRIPTS: dict[str, list[tuple[int, int, int]]] = {
    "no state, any first sequence": [(0, 10, 10), (0, 0, 10), (0, 0, 10), (0, 20, 10)],
    "no state, any epoch": [(7, 3, 1), (7, 4, 1), (6, 0, 1)],
    "a window of five": [*((0, n, 1) for n in range(7)), *((0, n, 1) for n in range(7)), (0, 7, 1)],
    "other cuts": [(0, 0, 10), (0, 0, 5), (0, 5, 5), (0, 0, 20), (0, 5, 10), (0, 10, 1)],
    "gaps": [(0, 0, 1), (0, 2, 1), (0, 3, 1), (0, 1, 1), (0, 2, 1)],
    "a bump": [(0, 0, 1), (1, 1, 1), (1, 0, 1), (0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)],
    "a jump of epochs": [(0, 0, 1), (5, 0, 1), (4, 0, 1), (32767, 0, 1), (5, 1, 1)],
    "a wrap inside a batch": [(0, LAST - 2, 7), (0, LAST - 2, 7), (0, 4, 1), (0, 5, 1), (0, LAST - 2, 7)],
    "a wrap between batches": [(0, LAST - 1, 2), (0, 1, 1), (0, 0, 1), (0, LAST - 1, 2)],
    "a split whose parent is in the log": [(0, 0, 10), (0, 0, 5), (0, 5, 5), (0, 0, 10), (0, 10, 5)],
}
EIGHT = [put(0, n * 10, 10) for n in range(8)]
# What Kafka lets through or trips over, and ours refuses, so that a mistake of our own producer shows: name -> Kafka's answer.
STRICTER: dict[str, int] = {
    "a byte behind the batch": 0,
    "log append time": 0,
    "a producer id without an epoch": 0,
    "codec 5": UNEXPECTED,
    "a base timestamp of another record": 0,
    "a maximum timestamp too high": 0,
    "a maximum timestamp too low": 0,
    "an offset delta twice": 0,
    "an offset delta left out": 0,
    "record attributes": 0,
    "a key length of -2": 0,
    "a value length of -2": 0,
    "a header key that is not UTF-8": 0,
    "a header value length of -2": 0,
    "a number of six bytes": UNEXPECTED,
    "gzip that is none": UNEXPECTED,
    "gzip that ends early": UNEXPECTED,
    "snappy that is none": UNEXPECTED,
    "xerial with a cut block": UNEXPECTED,
    "xerial with a cut length": 0,
    "lz4 that is none": UNEXPECTED,
    "lz4 with dependent blocks": UNEXPECTED,
    "lz4 that ends early": UNEXPECTED,
    "lz4 with a byte behind": 0,
    "zstd that is none": UNEXPECTED,
    "zstd that ends early": UNEXPECTED,
}


def one_node() -> list[Case]:
    """Cases for a cluster of one node with default clocks."""
    found = [
        Case(f"broken: {what}", [raw(data), END], stricter=what in STRICTER) for what, (data, _, _) in BROKEN.items()
    ]
    for name, script in SCRIPTS.items():
        steps = [put(*one) for one in script] + [TELL, END]
        found.append(Case(name, steps))
        found.append(Case(f"{name}, log append time", steps, {"message.timestamp.type": "LogAppendTime"}))
    keyed = batch([Rec(key=b"k")])
    mixed = batch([Rec(key=b"k"), Rec(), Rec(key=b""), Rec()])
    far = "9223372036854775807"
    found += [
        Case("no key on a compacted topic", [raw(mixed), raw(keyed), END], {"cleanup.policy": "compact"}),
        Case(
            "made compacted after the append",
            [put(0, 0, 2), do("alter", name="cleanup.policy", value="compact"), put(0, 0, 2), put(0, 9, 1), END],
        ),
        Case(
            "a limit lowered after the append",
            [
                put(0, 0, 50),
                do("alter", name="max.message.bytes", value="100"),
                put(0, 0, 50),
                put(0, 77, 50),
                do("alter", name="max.message.bytes", value="100000"),
                put(0, 0, 50),
                put(0, 77, 1),
                END,
            ],
        ),
        Case(
            "timestamp bounds narrowed after the append",
            [
                put(0, 0, 3, age_ms=HOUR),
                do("alter", name="message.timestamp.before.max.ms", value="1000"),
                put(0, 0, 3, age_ms=HOUR),
                put(0, 9, 3, age_ms=HOUR),
                put(0, 9, 3),
                do("alter", name="message.timestamp.before.max.ms", value=far),
                put(0, 0, 3, age_ms=HOUR),
            ],
        ),
        Case(
            "contents are not compared",
            [
                raw(batch([Rec(b"one")], Head(PID, 0, 0))),
                raw(batch([Rec(b"two, and longer")], Head(PID, 0, 0))),
                raw(batch([Rec(b"three")], Head(PID, 0, 0, crc=1))),
                END,
            ],
        ),
        Case("a minimum above the replicas", [put(0, 0), END], {"min.insync.replicas": "2"}),
        Case("acks that are none", [put(0, 0, acks=2), put(0, 0, acks=1), put(0, 0, acks=-1)]),
        Case(
            "producers are told",
            [
                put(0, 0, 5, pid=PID + 1),
                put(3, 10, pid=PID + 2),
                put(0, 5, pid=PID + 1),
                put(0, 9, pid=PID + 1),
                put(4, 0, 2, pid=PID + 2),
                put(0, LAST - 1, 4, pid=PID + 3),
                TELL,
            ],
        ),
        Case(
            "offsets by time and epochs",
            [
                *(
                    raw(batch([Rec(timestamp=at) for at in times]))
                    for times in ((1000, 3000, 2000), (4000, 4000), (500, 3500))
                ),
                *(do("offset", timestamp=at) for at in (-1, -2, -3, 0, 1001, 3000, 3001, 4001)),
                *(do("epoch", asked=asked, current=current) for current, asked in ((0, 0), (-1, 0), (0, 5), (9, 0))),
                do("offset", timestamp=-1, epoch=9),
            ],
        ),
        Case("all deleted while it runs", [*EIGHT, do("delete", offset=-1), START, TELL, *EIGHT[2:], put(0, 990)]),
        Case(
            "deleted in the middle of a batch", [*EIGHT, do("delete", offset=25), START, do("delete", offset=999), TELL]
        ),
        Case(
            "made again",
            [
                *EIGHT[:6],
                TELL,
                do("recreate"),
                put(0, 60, 10),
                put(0, 50, 10),
                put(0, 70, 10),
                TELL,
                do("epoch", asked=0, current=-1),
            ],
        ),
    ]
    return [case for case in found if "transactional" not in case.name]


def restarts() -> list[Case]:
    """Cases in which the only node is started again."""
    found: list[Case] = []
    for clean in (True, False):
        how = "clean" if clean else "hard"
        again = do("restart", node=1, clean=clean)
        # The start of a log is written down every half second here; a kill before that brings the records back.
        noted = do("sleep", ms=2000)
        other = put(0, 0, pid=PID + 1)
        found += [
            Case(
                f"{how} restart: the last batch only",
                [*EIGHT, again, TELL, *EIGHT[3:], put(0, 990), put(0, 80), EIGHT[7]],
            ),
            Case(
                f"{how} restart: behind another id",
                [put(2, 0), *(put(0, n, pid=PID + 1) for n in range(9)), again, put(2, 0), put(1, 0), put(2, 1)],
            ),
            Case(f"{how} restart: log emptied", [*EIGHT, do("delete", offset=-1), noted, again, TELL, put(0, 990)]),
            Case(f"{how} restart: another id left", [*EIGHT, other, do("delete", offset=80), noted, again, TELL]),
            Case(
                f"{how} restart: an old last batch", [put(0, 0), put(0, 1, age_ms=48 * HOUR), again, TELL, put(0, 77)]
            ),
            Case(
                f"{how} restart: after a bump",
                [put(0, 0), put(1, 0), again, put(0, 0), put(0, 1), put(1, 0), put(1, 1)],
            ),
        ]
    return found


def rights() -> list[Case]:
    """Cases for a cluster that looks at rights; whatever has no rule is free, so each begins with a rule for somebody else."""
    elsewhere = do("acl", who="other", operation="READ", deny=False)
    asked = [put(0, 0, 2), put(0, 9), TELL, END, do("delete", offset=0)]
    # Whoever may do what brokers do is told where epochs end, and without a rule everybody may: so that is not asked.
    found = [Case("rights: none", [put(0, 0, 2), elsewhere, *asked])]
    for operation in ("WRITE", "READ", "DESCRIBE", "DELETE"):
        mine = do("acl", who="me", operation=operation, deny=False)
        found.append(Case(f"rights: {operation}", [put(0, 0, 2), elsewhere, mine, *asked]))
    both = [
        do("acl", who="me", operation=one, deny=no) for one, no in (("WRITE", False), ("READ", False), ("WRITE", True))
    ]
    found.append(Case("rights: WRITE denied and allowed", [put(0, 0, 2), elsewhere, *both, *asked]))
    return found


def ids() -> list[Case]:
    """Cases for Produce 13, which names topics by their id: life 0 is the first, -1 the newest."""
    old, new = {"version": 13, "life": 0}, {"version": 13, "life": -1}
    return [
        Case(
            "by id, made again",
            [
                *(step | new for step in EIGHT[:6]),
                do("recreate"),
                put(0, 60, 10) | old,
                put(0, 50, 10) | old,
                put(0, 60, 10) | new,
                put(0, 50, 10) | new,
                put(0, 70, 10) | new,
                put(0, 80, 10),
                TELL,
            ],
        )
    ]


EXPIRY = {"producer.id.expiration.ms": "3000", "producer.id.expiration.check.interval.ms": "1000"}


def ages() -> list[Case]:
    """Cases for a node that forgets producers after three seconds and looks every second."""
    wait = do("sleep", ms=5500)
    short = do("sleep", ms=2500)
    return [
        Case("age: a record of now", [put(0, 0), TELL, wait, TELL, put(0, 500)]),
        Case("age: an hour old", [put(0, 0, age_ms=HOUR), short, TELL, put(0, 500)]),
        Case("age: in the future", [put(0, 0, age_ms=-600_000), wait, TELL, put(0, 500), put(0, 0, age_ms=-600_000)]),
        Case("age: only the last batch counts", [put(0, 0), put(0, 1, age_ms=HOUR), do("sleep", ms=1500), TELL]),
        Case(
            "age: log append time",
            [put(0, 0, age_ms=HOUR), do("sleep", ms=1300), TELL, wait, TELL],
            {"message.timestamp.type": "LogAppendTime"},
        ),
    ]


def three_nodes() -> list[Case]:
    """Cases for three replicas, on nodes 1, 2 and 3 in this order, two of which must be in sync."""
    b1 = EIGHT[1]
    return [
        Case(
            "a follower frozen but in sync",
            [
                EIGHT[0],
                do("freeze", node=3),
                b1 | {"timeout_ms": 1000},
                b1 | {"acks": 1},
                EIGHT[0],
                put(0, 10, 5),
                END,
                TELL,
                do("producers", node=2),
                do("thaw", node=3),
                b1 | {"timeout_ms": 20_000},
                END,
            ],
        ),
        Case(
            "followers and epochs",
            [
                *EIGHT,
                do("producers", node=2),
                do("producers", node=3),
                do("elect", node=2),
                *(step | {"node": 2} for step in EIGHT[2:]),
                put(0, 80, 10, node=1),
                do("offset", timestamp=-1, epoch=1, node=2),
                do("offset", timestamp=-1, epoch=1, node=1),
                do("offset", timestamp=-1, epoch=0, node=2),
                do("offset", timestamp=-1, epoch=7, node=2),
                do("epoch", asked=0, current=1, node=2),
                do("epoch", asked=1, current=-1, node=2),
                do("epoch", asked=7, current=1, node=2),
                do("producers", node=1),
            ],
        ),
        Case(
            "too few in sync",
            [
                *EIGHT[:3],
                do("kill", node=3),
                do("expelled", node=3),
                EIGHT[2],
                EIGHT[3],
                put(0, 990),
                EIGHT[2] | {"acks": 1},
                END,
                do("start", node=3),
                EIGHT[3],
                END,
            ],
            {"min.insync.replicas": "3"},
        ),
        Case(
            "a restarted follower leads",
            [
                *EIGHT[:5],
                do("restart", node=2, clean=False),
                *EIGHT[5:],
                do("elect", node=2),
                *(step | {"node": 2} for step in EIGHT[3:]),
                put(0, 990, node=2),
            ],
        ),
    ]


def unclean() -> list[Case]:
    """One case for a cluster of three nodes that is left with one of them dead: what a leader alone had acknowledged is lost."""
    lost = [step | {"node": 2} for step in EIGHT]
    return [
        Case(
            "an unclean leader",
            [
                *EIGHT[:2],
                do("kill", node=2),
                do("expelled", node=2),
                *EIGHT[2:7],
                do("kill", node=1),
                do("begin", node=2),
                do("led", node=2),
                do("producers", node=2),
                *(lost[number] for number in (7, 6, 5, 4, 3, 2, 3, 0)),
                do("producers", node=2),
                do("offset", timestamp=-1, node=2),
            ],
            {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"},
            replicas=(1, 2),
        )
    ]
