"""Sessions against a model: whatever connects, sends, resends, vanishes or restarts, each frame is taken once and answered by
proof only."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from penstock.daemon.ledger.entries import FrameEntry
from penstock.daemon.ledger.slices import NoSpaceError, PendingSlice, SpoolFullError
from penstock.daemon.sessions.session import RouterSession, RouterSessionState
from penstock.wire.frames import Ack, Code, Done, Refused, Welcome

from tests.core.intake_world import World, facts, send
from tests.harness.counts import model_examples

ROWS = 4


@dataclass(eq=False)
class Client:
    """One client id: what it sent and has no answer for, and what it was told."""

    name: str
    session: RouterSession | None = None
    next_seq: int = 0
    unanswered: dict[int, list[object]] = field(default_factory=dict)
    levels: dict[int, int] = field(default_factory=dict)
    acked: dict[int, int] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    flushes: dict[int, set[int]] = field(default_factory=dict)


class SessionsMachine(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.world = World(bytes_max=1_500)
        self.world.topics.known["t"] = facts(partitions=3)
        self.open: list[PendingSlice] = []
        self.seen = 0
        self.every: list[Client] = []
        self.delivered: set[tuple[str | None, int]] = set()
        self.written = self.synced = 0

    @initialize(target=clients)
    def begin(self) -> Any:
        self.every = [Client("a"), Client("b")]
        for client in self.every:
            self.connect(client)
        return multiple(*self.every)

    # --- what clients do ---------------------------------------------------------------------------------------------

    @rule(client=clients)
    def connect(self, client: Client) -> None:
        """Greet and send everything unanswered again, in order; the old connection may still be there."""
        old = client.session
        client.session = self.world.connect(
            client.name, detail="records", unanswered_from=client.next_seq - len(client.levels)
        )
        client.flushes.clear()
        if old is not None:
            assert old.state is RouterSessionState.CLOSED
        welcome = self.world.told(client.session)[0]
        assert isinstance(welcome, Welcome)
        taken = [entry.seq for entry in self.entries() if entry.client_id == client.name]
        assert welcome.high == max(taken, default=-1)
        for seq in sorted(client.unanswered):
            if not self.offer(client, client.unanswered[seq]):
                break
        self.collect()

    @rule(
        client=clients,
        level=st.integers(0, 2),
        partitions=st.lists(st.sampled_from([0, 1, 2, None]), min_size=ROWS, max_size=ROWS),
        gap=st.integers(0, 2),
    )
    def send_new(self, client: Client, level: int, partitions: list[int | None], gap: int) -> None:
        if client.session is None or client.session.hold is not None:
            return
        seq = client.next_seq + gap
        client.next_seq = seq + 1
        message = send(seq, level=level, n=ROWS, partitions=partitions)
        client.unanswered[seq] = message
        client.levels[seq] = level
        self.offer(client, message)
        self.collect()

    @rule(client=clients)
    def send_wrong(self, client: Client) -> None:
        if client.session is None or client.session.hold is not None:
            return
        seq = client.next_seq
        client.next_seq += 1
        client.unanswered[seq] = send(seq, partitions=9)
        client.levels[seq] = 2
        self.offer(client, client.unanswered[seq])
        self.collect()

    @rule(client=clients, refusal=st.sampled_from([NoSpaceError(), SpoolFullError()]))
    def send_without_room(self, client: Client, refusal: Any) -> None:
        if client.session is None or client.session.hold is not None:
            return
        seq = client.next_seq
        client.next_seq += 1
        client.unanswered[seq] = send(seq, n=ROWS)
        client.levels[seq] = 2
        self.world.store.refusal = refusal
        self.offer(client, client.unanswered[seq])
        self.world.store.refusal = None
        self.collect()

    @rule(client=clients)
    def flush(self, client: Client) -> None:
        if client.session is None or client.session.hold is not None:
            return
        seq = 1_000_000 + client.next_seq
        client.next_seq += 1
        client.flushes[seq] = set(client.unanswered)
        assert self.world.offer(client.session, [3, seq])
        self.collect()

    @rule(client=clients)
    def vanish(self, client: Client) -> None:
        if client.session is not None:
            self.world.intake.connection_closed(client.session)
            client.session = None
            client.flushes.clear()

    def offer(self, client: Client, message: list[object]) -> bool:
        """Held frames are offered again by `step`."""
        assert client.session is not None
        return self.world.offer(client.session, message)

    # --- what the daemon does ----------------------------------------------------------------------------------------

    @rule()
    def write(self) -> None:
        self.world.write()
        self.written = len(self.entries())
        self.collect()

    @rule()
    def sync(self) -> None:
        self.write()
        self.world.sync()
        self.synced = self.written
        self.collect()

    @rule(at=st.integers(0, 1_000), parked=st.booleans())
    def deliver(self, at: int, parked: bool) -> None:
        """One slice that a shard may have: synced, and the first of its partition."""
        synced = {(entry.client_id, entry.seq) for entry in self.entries()[: self.synced]}
        ready: dict[int, PendingSlice] = {}
        for piece in self.open:
            if (piece.frame.client_id, piece.frame.seq) in synced:
                ready.setdefault(piece.partition, piece)
        if not ready:
            return
        piece = list(ready.values())[at % len(ready)]
        self.open.remove(piece)
        frame = piece.frame
        over = self.world.deliver(piece, piece.first, parked=((0, 1, "INVALID_RECORD"),) if parked else ())
        if over:
            self.delivered.add((frame.client_id, frame.seq))
        self.collect()

    @rule()
    def step(self) -> None:
        """Offer what is held again, as the listener would, with room in the spool."""
        self.world.intake.spool_full = False
        for session in self.world.intake.resumable_sessions(self.world.now, topics_changed=True, room=True):
            (client,) = [client for client in self.every if client.session is session]
            sent = [seq for seq in sorted(client.unanswered) if seq not in session.unanswered]
            for seq in sent:
                if not self.offer(client, client.unanswered[seq]):
                    break
        self.world.answers.sessions_to_resume.clear()
        self.collect()

    # --- what must hold ----------------------------------------------------------------------------------------------

    def entries(self) -> list[FrameEntry]:
        return [entry for entry in self.world.store.entries if isinstance(entry, FrameEntry)]

    def collect(self) -> None:
        """Take what clients were told, and hold it against what is proved."""
        self.open += self.world.delivery.pushed[self.seen :]
        self.seen = len(self.world.delivery.pushed)
        places = {(entry.client_id, entry.seq): at for at, entry in enumerate(self.entries())}
        for client in self.every:
            if client.session is None:
                continue
            for told in self.world.told(client.session):
                self.heard(client, told, places)

    def heard(self, client: Client, told: object, places: dict[tuple[str | None, int], int]) -> None:
        match told:
            case Ack(seq=seq, level=level):
                assert seq in client.unanswered, f"{seq} was answered without being open"
                place = places[client.name, seq]
                match client.levels[seq]:
                    case 0:
                        assert place < self.written
                    case 1:
                        assert place < self.synced
                    case _:
                        assert (client.name, seq) in self.delivered
                del client.unanswered[seq]
                client.acked[seq] = -1 if level is None else level
            case Refused(seq=seq, code=code) if seq is not None:
                assert (client.name, seq) not in places, f"{seq} was refused and taken"
                assert code in {Code.BAD_PARTITION, Code.NO_SPACE, Code.REFUSED_BEFORE}
                del client.unanswered[seq]
                client.refused.add(seq)
            case Done(seq=seq):
                assert not client.flushes.pop(seq) & client.unanswered.keys(), "FLUSH was answered early"
            case _:
                raise AssertionError(f"nobody asked for {told}")

    @invariant()
    def every_frame_is_taken_once(self) -> None:
        counted = Counter((entry.client_id, entry.seq) for entry in self.entries())
        assert all(count == 1 for count in counted.values())
        for client in self.every:
            taken = [entry.seq for entry in self.entries() if entry.client_id == client.name]
            assert taken == sorted(taken)

    @invariant()
    def ordinals_of_each_partition_have_no_gap(self) -> None:
        ends: dict[int, int] = {}
        for entry in self.entries():
            for part in entry.slices:
                assert part.first == ends.get(part.partition, 0)
                ends[part.partition] = part.first + part.count

    @invariant()
    def sums_add_up(self) -> None:
        counts = self.world.counts
        pending = sum(piece.count for piece in self.open)
        assert counts.received == sum(counts.refused.values()) + counts.completed + pending
        for client in self.every:
            if client.session is not None and not client.session.unanswered:
                assert (client.session.credit.nbytes, client.session.credit.records) == (0, 0)

    def teardown(self) -> None:
        """Everything settles: whoever is still there gets an answer to everything."""
        for client in self.every:
            if client.session is None:
                self.connect(client)
        for _ in range(500):
            if not any(client.unanswered for client in self.every):
                break
            self.sync()
            for _ in range(len(self.open)):
                self.deliver(0, parked=False)
            self.step()
        for client in self.every:
            assert not client.unanswered
            assert not client.flushes


TestSessionsMachine = SessionsMachine.TestCase
TestSessionsMachine.settings = settings(max_examples=model_examples(300), stateful_step_count=50, deadline=None)
