"""Exchanges with three real nodes whose leaders move, are deposed, cut off, or come back without what they knew.

Steps besides those of `exchange_cases` and `exchange_cases_single`:

    cut       node, ways (everybody, controller, followers)                  moved     node: wait until it leads
    thaw, heal: waiting, requests that one connection            level     node: wait until all replicas are in sync, by its word
              sent before and that are answered behind it        stop      node
"""

from tests.kafka.exchange_cases import EIGHT, END, HOUR, PID, TELL, Case, Step, do, put

B0, B1, B2, B3 = EIGHT[:4]
SHORT: Step = {"timeout_ms": 1000}
LONG: Step = {"timeout_ms": 30_000, "version": 10, "hints": True}


def at(node: int, *steps: Step) -> list[Step]:
    return [step | {"node": node} for step in steps]


def deposed() -> list[Case]:
    """Cases for a cluster whose node 1 can be stopped or cut off while 3, the controller, goes on; node 1 leads first."""
    behind = [
        do("level", node=2),
        *at(1, put(0, 20, 5) | {"version": 10, "hints": True}, TELL, END),
        *at(2, TELL, END, do("epoch", asked=0, current=-1), put(0, 20, 5), put(0, 20, 10), put(0, 30, 10), END),
    ]
    gap, tail, unseen = put(0, 70), put(0, 20, 5, acks=1), put(0, 25, 5) | LONG
    stopped = [do("freeze", node=1), do("moved", node=2)]
    found = [
        Case(
            "a stopped leader goes on deposed",
            [B0, B1, *stopped, do("thaw", node=1, waiting=at(1, gap, B1, tail, unseen)), *behind],
        ),
        Case(
            "a stopped leader goes on deposed, its successor has written",
            [
                B0,
                B1,
                *stopped,
                *at(2, B2, B3),
                do("thaw", node=1, waiting=at(1, gap, B0, tail, unseen)),
                do("level", node=2),
                *at(1, B3 | {"version": 10, "hints": True}, TELL),
                *at(2, TELL, END, do("epoch", asked=0, current=-1), tail, B2, B3, EIGHT[4]),
            ],
        ),
        Case(
            "leadership moves while a batch waits",
            [
                B0,
                do("cut", node=1, ways="followers"),
                do("elect", node=2, waiting=at(1, B1 | LONG)),
                *at(1, B2 | {"version": 10, "hints": True}, TELL),
                *at(2, TELL),
                do("heal", node=1),
                do("level", node=2),
                *at(1, TELL),
                *at(2, B2, B1, B2),
            ],
        ),
    ]
    for ways in ("controller", "everybody"):
        cut = [do("cut", node=1, ways=ways), do("moved", node=2)]
        cut_off = at(
            1,
            gap,
            B1,
            put(0, 20, 5) | SHORT,
            put(0, 25, 5, acks=1),
            put(0, 25, 5) | SHORT,
            TELL,
            do("offset", timestamp=-1, epoch=1),
            do("offset", timestamp=-1, epoch=0),
            do("epoch", asked=0, current=1),
            put(0, 77),
        )
        late = at(1, put(0, 30, 5) | LONG)
        found.append(
            Case(f"a leader cut off from {ways}", [B0, B1, *cut, *cut_off, do("heal", node=1, waiting=late), *behind])
        )
    return found


def recognition() -> list[Case]:
    """Cases for three replicas that restart, and then lead: what they know of an id all of whose batches they have."""
    found: list[Case] = []
    asked = at(2, TELL, *EIGHT[2:], put(0, 990))
    noted = do("sleep", ms=2500)
    gone = do("delete", offset=-1)
    for clean in (True, False):
        how = "cleanly" if clean else "hard"
        again = do("restart", node=2, clean=clean)
        found += [
            Case(f"a replica ended {how} with everything leads", [*EIGHT, noted, again, do("elect", node=2), *asked]),
            Case(
                f"a replica ended {how} after the deletion leads",
                [*EIGHT, gone, noted, again, do("elect", node=2), *asked[:1], put(0, 990, node=2)],
            ),
            Case(
                f"a replica ended {how} after the deletion leads, another id had written",
                [*EIGHT, gone, put(0, 0, pid=PID + 1), noted, again, do("elect", node=2), *asked[:1], *asked[-1:]],
            ),
        ]
    found += [
        Case("a running replica leads after the deletion", [*EIGHT, gone, noted, do("elect", node=2), *asked]),
        Case(
            "a replica was away during the deletion",
            [*EIGHT, noted, do("stop", node=2), gone, noted, do("start", node=2), do("elect", node=2), *asked],
        ),
        Case(
            "a replica was away while batches were written and deleted",
            [
                *EIGHT[:5],
                do("stop", node=2),
                *EIGHT[5:],
                gone,
                noted,
                do("start", node=2),
                do("elect", node=2),
                *asked[:1],
                put(0, 990, node=2),
            ],
        ),
        Case(
            "a leader ends in order",
            [*EIGHT, do("stop", node=1), do("moved", node=2), *asked[1:], do("start", node=1), do("level", node=2)],
        ),
    ]
    return found


def retained_by_three() -> list[Case]:
    """Cases for three replicas that look every second whether something is to be deleted, and what one that restarts knows."""
    found: list[Case] = []
    old = [put(0, n * 10, 10, age_ms=HOUR) for n in range(8)]
    rule = do("alter", name="retention.ms", value="60000")
    gone, noted, other = do("retained", offset=80), do("sleep", ms=4000), put(0, 0, pid=PID + 1)
    for clean in (True, False):
        how = "cleanly" if clean else "hard"
        lead = [noted, do("restart", node=2, clean=clean), do("elect", node=2), *at(2, TELL, put(0, 990))]
        found += [
            Case(f"a replica ended {how} after retention leads", [*old, rule, gone, *lead]),
            Case(
                f"a replica ended {how} after retention leads, another id had written",
                [*old, other, rule, gone, *lead],
                {"segment.ms": "60000"},
            ),
        ]
        # Ended hard, it knows the id or not: by whether it had deleted itself before it heard that its leader had.
        if clean:
            name = f"a replica ended {how} after retention leads, another id wrote then"
            found.append(Case(name, [*old, rule, gone, noted, other, *lead]))
    return found


def more_unclean() -> list[Case]:
    """Cases in which what a leader alone had acknowledged is lost; the nodes are all there again at their ends."""
    settings = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    alone = [do("kill", node=2), do("expelled", node=2)]
    lost = [do("kill", node=1), do("begin", node=2), do("led", node=2)]
    ends = [do("epoch", asked=0, current=-1, node=2), do("start", node=1), do("level", node=2), *at(1, TELL)]
    other = put(0, 0, pid=PID + 1)
    return [
        Case(
            "an unclean leader never saw the id",
            [other, *alone, *EIGHT[:3], *lost, *at(2, EIGHT[3], EIGHT[1], TELL, EIGHT[4]), *ends],
            settings,
            replicas=(1, 2),
        ),
        Case(
            "a bump is lost by an unclean leader",
            [
                *EIGHT[:2],
                *alone,
                put(1, 0, 10),
                put(1, 10, 10),
                *lost,
                *at(2, put(1, 20, 10), EIGHT[2], put(1, 10, 10), put(1, 0, 10), EIGHT[2]),
                *ends,
            ],
            settings,
            replicas=(1, 2),
        ),
    ]
