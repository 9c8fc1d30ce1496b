"""Runs of the audit as the report sees them: a good one, one with every kind of trouble, a huge one, an empty one, a hostile one."""

import random
from datetime import UTC, datetime
from typing import Final

from penstock.pipeline.report.data import (
    DuplicateId,
    HoleRange,
    HourRow,
    IncarnationState,
    KafkaPosition,
    LeftOut,
    MinutePoint,
    MinuteSeries,
    MissingClass,
    MissingRange,
    ReportData,
    Status,
)

HOUR_0: Final = 29_737_620
"""2026-07-17 03:00 UTC, in minutes."""
NOW_MS: Final = (HOUR_0 + 5 * 60 + 7) * 60_000
HOSTILE: Final = '</script><script>window.hurt=1</script><img src=x onerror="window.hurt=1">\'"&`{{7*7}}'


def hour_of(number: int) -> str:
    """Name of the hour that begins `number` hours after `HOUR_0`."""
    return datetime.fromtimestamp((HOUR_0 + 60 * number) * 60, UTC).strftime("%Y-%m-%d-%H")


def incarnation(number: int) -> str:
    """12 hex digits."""
    return f"{0x3F2A9C000000 + number * 0x1D3F1:012x}"


def row(
    topic: str = "clicks",
    *,
    hour: int = 0,
    host: int = 0,
    accepted: int = 500_000,
    holes: int = 0,
    pending: int = 0,
    late: int = 0,
    lost: int = 0,
    duplicated: int = 0,
    recovered: int = 0,
    foreign: int = 0,
    status: Status | None = None,
    doubts: tuple[str, ...] = (),
    p50: float = 14.2,
    p99: float = 41.0,
) -> HourRow:
    """A row whose counters agree and whose status follows from them unless it is given."""
    expected = accepted - holes
    distinct = expected - pending - late - lost
    if status is None:
        status = (
            Status.LOST
            if lost
            else Status.DUPLICATED
            if duplicated
            else Status.UNKNOWN
            if doubts
            else Status.LATE
            if pending or late
            else Status.COMPLETE
        )
    return HourRow(
        topic=topic,
        hour=hour_of(hour),
        incarnation=incarnation(host),
        host=f"edge-{host + 1:02}.example",
        status=status,
        accepted=accepted,
        holes=holes,
        expected=expected,
        landed=distinct + duplicated + recovered,
        distinct=distinct,
        pending=pending,
        late=late,
        lost=lost,
        duplicated=duplicated,
        recovered=recovered,
        foreign=foreign,
        latency_p50_s=p50,
        latency_p99_s=p99,
        doubts=doubts,
    )


def _minutes(
    hours: int, peak: int, chance: random.Random, trouble: dict[int, dict[str, int]]
) -> tuple[MinutePoint, ...]:
    points: list[MinutePoint] = []
    for minute in range(hours * 60):
        expected = int(peak * (0.55 + 0.4 * abs((minute % 240) / 120 - 1) + 0.12 * chance.random()))
        counts = trouble.get(minute, {})
        missing = counts.get("pending", 0) + counts.get("late", 0) + counts.get("lost", 0)
        points.append(MinutePoint(HOUR_0 + minute, expected, expected - missing, **counts))
    return tuple(points)


def troubled() -> ReportData:
    """Five hours, three topics, four hosts: 7 records lost, 11 twice, some late and pending, a silent host, holes."""
    chance = random.Random(6)
    hours = 5
    rows = [
        row(hour=h, host=host, accepted=480_000 + 1_000 * h + host, p50=12.1 + h, p99=38.0 + 4 * h)
        for h in range(hours)
        for host in range(2)
    ]
    rows[2] = row(hour=1, host=0, accepted=482_130, lost=7, holes=12, recovered=2)
    rows[5] = row(hour=2, host=1, accepted=479_118, duplicated=11)
    rows += [
        row("orders", hour=h, host=2, accepted=31_000 + h, p50=3.4, p99=9.5, foreign=40 * h) for h in range(hours - 1)
    ]
    rows.append(row("orders", hour=4, host=2, accepted=21_554, late=3_120, pending=12, p50=30.0, p99=610.0))
    rows.append(
        row(
            "sensors.raw",
            hour=3,
            host=3,
            accepted=9_000,
            doubts=("no heartbeat since 06:41", "origin 3: ordinals 120 to 180 are in no range"),
            p50=8.0,
            p99=22.0,
        )
    )
    missing = [
        MissingRange("clicks", hour_of(1), incarnation(0), "edge-01.example", 3, 104_117, 104_121, MissingClass.LOST, "partition 3 was read to 812,440, the range ends at 790,118"),
        MissingRange("clicks", hour_of(1), incarnation(0), "edge-01.example", 5, 99_001, 99_004, MissingClass.LOST, "partition 5 was read to 798,002, the range ends at 791,550"),
        MissingRange("orders", hour_of(4), incarnation(2), "edge-03.example", 0, 144_300, 147_420, MissingClass.LATE, "partition 0 was read to 144,300"),
        MissingRange("orders", hour_of(4), incarnation(2), "edge-03.example", 1, 88_210, 88_222, MissingClass.PENDING, "not settled"),
    ]  # fmt: skip
    duplicates = [
        DuplicateId("clicks", hour_of(2), incarnation(1), "edge-02.example", n % 4, 61_000 + 17 * n, (KafkaPosition(n % 4, 700_100 + n), KafkaPosition(n % 4, 901_000 + n)))
        for n in range(11)
    ]  # fmt: skip
    holes = (
        HoleRange("clicks", hour_of(1), incarnation(0), "edge-01.example", 3, 104_300, 104_310, "expired"),
        HoleRange("clicks", hour_of(1), incarnation(0), "edge-01.example", 7, 5_120, 5_122, "parked"),
    )
    lost_minute, twice_minute = {60 + 14: {"lost": 4}, 60 + 15: {"lost": 3}}, {120 + 33: {"duplicated": 11}}
    late_minutes = {m: {"late": 120} for m in range(270, 296)} | {297: {"pending": 12}}
    return ReportData(
        run_id="20260717T080700-8c1f",
        ran_at_ms=NOW_MS,
        took_s=8.4,
        exit_code=13,
        hours=tuple(hour_of(h) for h in range(hours)),
        hours_sealed=41,
        tables="/srv/lake/penstock",
        rows=tuple(rows),
        missing=tuple(missing),
        duplicates=tuple(duplicates),
        holes=holes,
        topics=(
            MinuteSeries("clicks", _minutes(hours, 16_000, chance, lost_minute | twice_minute)),
            MinuteSeries("orders", _minutes(hours, 560, chance, late_minutes)),
            MinuteSeries("sensors.raw", _minutes(4, 150, chance, {})[180:]),
        ),
        hosts=(
            MinuteSeries("edge-01.example", _minutes(hours, 8_000, chance, lost_minute)),
            MinuteSeries("edge-02.example", _minutes(hours, 8_000, chance, twice_minute)),
            MinuteSeries("edge-03.example", _minutes(hours, 560, chance, late_minutes)),
            MinuteSeries("edge-04.example", _minutes(4, 150, chance, {})[180:]),
        ),
        incarnations=tuple(
            IncarnationState(
                incarnation(n),
                f"edge-{n + 1:02}.example",
                "silent" if n == 3 else "running",
                NOW_MS - (5_160_000 if n == 3 else 4_000 + 1_000 * n),
                NOW_MS - 70_000,
            )
            for n in range(4)
        ),
    )


def good() -> ReportData:
    """One hour, all complete."""
    chance = random.Random(1)
    points = _minutes(1, 9_000, chance, {})
    return ReportData(
        run_id="20260717T040700-01",
        ran_at_ms=NOW_MS,
        took_s=3.1,
        exit_code=0,
        hours=(hour_of(0),),
        tables="/srv/lake/penstock",
        rows=(row(host=0), row(host=1, accepted=498_220)),
        topics=(MinuteSeries("clicks", points),),
        hosts=(MinuteSeries("edge-01.example", points), MinuteSeries("edge-02.example", points[:31])),
        incarnations=(
            IncarnationState(incarnation(0), "edge-01.example", "running", NOW_MS - 4_000, NOW_MS - 9_000),
            IncarnationState(incarnation(1), "edge-02.example", "closed", NOW_MS - 1_900_000, NOW_MS - 1_900_000),
        ),
    )


def empty() -> ReportData:
    """An hour in which nothing happened."""
    return ReportData("20260717T040700-00", NOW_MS, 0.4, 0, (hour_of(0),))


def huge(*, hours: int = 2_000, hosts: int = 1_500, topics: int = 300, names: int = 5_000) -> ReportData:
    """More of everything than a page can hold."""
    chance = random.Random(2)
    rows = [
        row(
            f"topic-{n % topics:03}",
            hour=n % hours,
            host=n % hosts,
            accepted=900 + n % 77,
            lost=1 if n % 997 == 0 else 0,
        )
        for n in range(max(hours, hosts) * 3)
    ]
    span = hours * 60

    def points(trouble: bool) -> tuple[MinutePoint, ...]:
        made = [MinutePoint(HOUR_0 + at, 50, 50) for at in sorted(chance.sample(range(span), 120))]
        return (*made[:-1], MinutePoint(made[-1].minute, 50, 49, lost=1)) if trouble else tuple(made)

    return ReportData(
        run_id="huge",
        ran_at_ms=NOW_MS,
        took_s=61.0,
        exit_code=13,
        hours=tuple(hour_of(h) for h in range(hours)),
        rows=tuple(rows),
        missing=tuple(
            MissingRange(f"topic-{n % topics:03}", hour_of(n % hours), incarnation(n % hosts), f"host-{n % hosts}", 0, 7 * n, 7 * n + 1, MissingClass.LOST)
            for n in range(names)
        ),
        topics=tuple(MinuteSeries(f"topic-{n:03}", points(n % 50 == 3)) for n in range(topics)),
        hosts=tuple(MinuteSeries(f"host-{n}", points(n % 200 == 5)) for n in range(hosts)),
        left_out=(LeftOut("ranges of lost ids", names, 3 * names),),
    )  # fmt: skip


def hostile() -> ReportData:
    """Names that try to be markup, to be endless, or to turn around."""
    endless = "x" * 240
    names = (HOSTILE, endless, "&amp;", "\u202eevil\u2066", "emoji 🐟 tab\t")
    rows = [row(name, hour=n, lost=1, doubts=(HOSTILE,)) for n, name in enumerate(names)]
    points = (MinutePoint(HOUR_0, 10, 9, lost=1), MinutePoint(HOUR_0 + 60 * 24 * 365 * 400, 5, 5), MinutePoint(7, 1, 1))
    return ReportData(
        run_id=HOSTILE,
        ran_at_ms=10**18,
        took_s=1.0,
        exit_code=13,
        hours=tuple(hour_of(h) for h in range(5)),
        tables=HOSTILE,
        audit_topic=HOSTILE,
        rows=tuple(rows),
        missing=(MissingRange(HOSTILE, hour_of(0), incarnation(0), HOSTILE, 0, 5, 6, MissingClass.LOST, HOSTILE),),
        duplicates=(
            DuplicateId(
                HOSTILE, hour_of(0), incarnation(0), HOSTILE, 0, 7, tuple(KafkaPosition(0, n) for n in range(400))
            ),
        ),
        holes=(HoleRange(HOSTILE, "no-hour", incarnation(0), endless, 0, 8, 9, HOSTILE),),
        topics=tuple(MinuteSeries(name, points) for name in names),
        hosts=tuple(MinuteSeries(name, points) for name in names),
        incarnations=(IncarnationState(incarnation(0), HOSTILE, HOSTILE, -(10**15), 10**18),),
    )
