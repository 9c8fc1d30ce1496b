"""Routers over spools that are killed, copied, robbed of their identity or damaged: no id is ever given to two records."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from penstock.config.model import Settings
from penstock.daemon.ledger.entries import AckedEntry, FrameEntry, SliceEntry, StampRowEntry
from penstock.daemon.ledger.segment_scan import ENTRIES_AT
from penstock.daemon.router.startup import StartedRouter, start
from penstock.daemon.spool import identity_file
from penstock.wire.messages import Anchor, StampRow
from penstock.wire.record_ids import incarnation_at

from tests.harness.counts import model_examples

SPOOLS_MAX = 3
Name = tuple[int, int]
"""Incarnation and ordinal; there is one partition."""


class LivesMachine(RuleBasedStateMachine):
    """Each spool is a folder, at times with a router. Everything written counts as sent."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="penstock-lives-"))
        self.settings: list[Settings] = []
        self.routers: list[StartedRouter | None] = []
        self.serial = 0
        self.records: dict[Name, int] = {}
        """What was ever given out, by id: the number of the record."""
        self.pending: list[dict[int, Name]] = []
        """By spool: what each ordinal is to be sent under."""

    def teardown(self) -> None:
        for router in self.routers:
            if router is not None:
                self.let_go(router)
        shutil.rmtree(self.home)

    @initialize()
    def begin(self) -> None:
        self.add_spool()
        self.settings[0].data_dir.mkdir()
        self.start(0)

    def add_spool(self) -> None:
        folder = self.home / str(len(self.settings))
        folder.mkdir()
        self.settings.append(
            Settings.model_validate(
                {
                    "data_dir": folder / "data",
                    "runtime_dir": folder / "run",
                    "shards": 1,
                    "kafka": {"bootstrap.servers": "127.0.0.1:1"},
                    "spool": {"bytes_max": "64 MiB", "segment_bytes": "4 MiB"},
                }
            )
        )
        self.routers.append(None)
        self.pending.append({})

    def start(self, spool: int) -> None:
        router = self.routers[spool] = start(self.settings[spool])
        ledger = router.recovered.ledger
        if not ledger.by_number:
            # Nothing may have been lost but what nobody was told of.
            entry = ledger.new_partition_entry("topic", b"", 0)
            _ = router.spool.append(entry)
            ledger.apply(entry)
            row = StampRowEntry(0, StampRow(9, 0, 0, 0), "new")
            _ = router.spool.append(row)
            ledger.apply(row)
        router.spool.write()

    @staticmethod
    def let_go(router: StartedRouter) -> None:
        router.spool.close(clean=False)
        router.identity.close()

    def living(self, choice: int) -> tuple[int, StartedRouter]:
        there = [(spool, router) for spool, router in enumerate(self.routers) if router is not None]
        return there[choice % len(there)]

    @rule(choice=st.integers(0, 5), counts=st.lists(st.integers(1, 4), min_size=1, max_size=4))
    def take(self, choice: int, counts: list[int]) -> None:
        spool, router = self.living(choice)
        ledger = router.recovered.ledger
        for count in counts:
            first = ledger.by_number[0].next_ordinal
            part = SliceEntry(0, first, count, 1, 0, 10)
            frame = FrameEntry(None, 7, 0, -1, 1, 900, count, None, [part], ledger.incarnation)
            # No zeros at its end: with those, damage there looks like a write that a kill cut short.
            _ = router.spool.append_frame(frame, [bytearray(b"\x01" * 10)], created_ms=0)
            ledger.apply(frame)
            for ordinal in range(first, first + count):
                name = (ledger.incarnation, ordinal)
                self.serial += 1
                assert name not in self.records, f"{name} is given to a second record"
                self.records[name] = self.serial
                self.pending[spool][ordinal] = name
        router.spool.write()

    @rule(choice=st.integers(0, 5), share=st.floats(0, 1))
    def acknowledge(self, choice: int, share: float) -> None:
        _, router = self.living(choice)
        state = router.recovered.ledger.by_number[0]
        mark = state.mark + int((state.next_ordinal - state.mark) * share)
        entry = AckedEntry(0, mark, Anchor(mark, 1, 1, 1), 0)
        _ = router.spool.append(entry)
        router.recovered.ledger.apply(entry)
        router.spool.write()

    @rule(choice=st.integers(0, 5), clean=st.booleans())
    def start_again(self, choice: int, clean: bool) -> None:
        spool, router = self.living(choice)
        router.spool.close(clean=clean)
        router.identity.close()
        self.start(spool)

    @precondition(lambda self: len(self.settings) < SPOOLS_MAX)
    @rule(choice=st.integers(0, 5))
    def copy(self, choice: int) -> None:
        """Taken of a spool whose router has been killed; both live on."""
        spool, router = self.living(choice)
        self.let_go(router)
        self.add_spool()
        shutil.copytree(self.settings[spool].data_dir, self.settings[-1].data_dir)
        self.pending[-1] = dict(self.pending[spool])
        self.start(spool)
        self.start(len(self.settings) - 1)

    @rule(choice=st.integers(0, 5))
    def lose_the_identity_file(self, choice: int) -> None:
        spool, router = self.living(choice)
        self.let_go(router)
        (self.settings[spool].spool_dir / identity_file.NAME).unlink()
        self.start(spool)

    @rule(choice=st.integers(0, 5))
    def empty_the_spool(self, choice: int) -> None:
        spool, router = self.living(choice)
        self.let_go(router)
        shutil.rmtree(self.settings[spool].spool_dir)
        self.pending[spool].clear()
        self.start(spool)

    @rule(choice=st.integers(0, 5), place=st.floats(0, 1), which=st.integers(0, 20))
    def damage_a_byte(self, choice: int, place: float, which: int) -> None:
        """Whatever it hits: what is left is sent under its own ids, and what comes after under others."""
        spool, router = self.living(choice)
        self.let_go(router)
        segments = sorted(
            path for path in self.settings[spool].spool_dir.glob("*.seg") if any(path.read_bytes()[ENTRIES_AT:])
        )
        path = segments[which % len(segments)]
        data = bytearray(path.read_bytes())
        end = len(data.rstrip(b"\0"))
        at = ENTRIES_AT + int((end - ENTRIES_AT - 1) * place)
        data[at] ^= 0x55
        path.write_bytes(data)
        self.start(spool)

    @invariant()
    def what_is_pending_is_sent_under_the_id_it_was_given(self) -> None:
        for spool, router in enumerate(self.routers):
            if router is None:
                continue
            ledger = router.recovered.ledger
            assert ledger.incarnation == router.identity.incarnation
            state = ledger.by_number[0]
            holes = {ordinal for hole in state.holes for ordinal in range(hole.first, hole.end)}
            for ordinal in range(state.mark, state.next_ordinal):
                if ordinal not in holes:
                    name = (incarnation_at(state.id_rows, ordinal), ordinal)
                    assert name == self.pending[spool][ordinal]


TestLives = LivesMachine.TestCase
TestLives.settings = settings(
    max_examples=model_examples(25), stateful_step_count=14, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
