"""Turns an accepted frame into ordinals, sealed slices, one log entry, and slices that wait for delivery."""

import struct
from collections.abc import Callable
from typing import Final

from ...producer.kernel.frames import ScatteredFrame, SliceRows
from ...wire import slices
from ..ledger.entries import FrameEntry, SliceEntry
from ..ledger.partition_state import Ledger
from ..ledger.slices import FrameLocation, PendingFrame, PendingSlice
from .ports import ClockReading, Delivery, FrameIdentity, FrameStore
from .routing import Route

_CRC: Final = struct.Struct("<I")
STEP_MS_MAX: Final = 3_600_000
"""The accept clock pauses if the wall clock is set back by no more than this; it follows a larger step."""


class AcceptClock:
    """Derives accept times from wall times; all in milliseconds since 1970.

    A minute that is over must stay over, so that its published counts can be final. The clock therefore pauses while
    the wall clock is behind by at most one hour. A pause of days would put all records into one minute, so the clock
    follows a larger step, increments `steps_back`, and minutes that were over occur again (RID-5).
    """

    def __init__(self, last_ms: int = 0, steps_back: int = 0) -> None:
        """`last_ms`, `steps_back`: the last accept time and the number of steps back, restored from the ledger."""
        self.last_ms = last_ms
        self.steps_back = steps_back

    def read(self, wall_ms: int) -> int:
        """Return the accept time for the wall time `wall_ms`."""
        if wall_ms >= self.last_ms:
            self.last_ms = wall_ms
        elif self.last_ms - wall_ms > STEP_MS_MAX:
            self.last_ms = wall_ms
            self.steps_back += 1
        return self.last_ms


class FrameStaging:
    """Owner of the accept clock. `daemon/sessions/intake.py` decides whether a frame is accepted."""

    def __init__(
        self,
        ledger: Ledger,
        store: FrameStore,
        delivery: Delivery,
        checksum: Callable[[bytes | bytearray | memoryview, int], int],
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._delivery = delivery
        self._checksum = checksum
        era, accept_ms = ledger.era, ledger.accept_ms
        if ledger.audit_counts is not None:
            era, accept_ms = max((era, accept_ms), ledger.audit_counts.clock)
        self.accept_clock = AcceptClock(accept_ms, era)

    def stage(
        self,
        route: Route,
        scattered: ScatteredFrame,
        sender: FrameIdentity,
        nbytes: int,
        unflushed: dict[int, int],
        clock: ClockReading,
    ) -> PendingFrame:
        """Assign ordinals, seal the slices, stage the entry, and push its slices for delivery. `nbytes`: size of the
        message; `unflushed`: receives one past the last ordinal of each partition.

        Raises:
            NoSpaceError: the disk is full. Nothing was accepted.
            SpoolFullError: the spool is at its limit. Nothing was accepted.
        """
        accept_ms = self.accept_clock.read(clock.wall_ms)
        entries = self._seal(route, scattered.slices, accept_ms)
        # With one slice, the slice itself names the partition of all records.
        partitions = scattered.partitions if len(entries) > 1 else None
        entry = FrameEntry(
            *sender,
            accept_ms,
            scattered.count,
            partitions,
            entries,
            self._ledger.incarnation if route.ids else 0,
            self.accept_clock.steps_back,
        )
        place = self._store.append_frame(entry, [rows.data for rows in scattered.slices], created_ms=clock.mono_ms)
        self._ledger.apply(entry)
        frame = PendingFrame(
            entry.client_id,
            entry.uid,
            entry.seq,
            entry.level,
            scattered.count,
            nbytes,
            place.lsn,
            clock.mono_ms,
            partitions,
            len(entries),
        )
        self._push(unflushed, frame, entries, place)
        return frame

    def _seal(self, route: Route, slices_rows: list[SliceRows], accept_ms: int) -> list[SliceEntry]:
        """Fill in the slice headers. The checksum comes last, because it covers the rest."""
        states, prefixes, checksum = route.states, route.checksums, self._checksum
        ids = slices.RECORD_IDS if route.ids and self._ledger.incarnation else 0
        pack_header, pack_crc, header_bytes = slices.HEADER.pack_into, _CRC.pack_into, slices.HEADER_BYTES
        entries: list[SliceEntry] = []
        at = 0
        for index, count, flags, base_ts, max_ts, data in slices_rows:
            state = states[index]
            first, length = state.next_ordinal, len(data)
            flags |= ids  # noqa: PLW2901
            rows = length - header_bytes
            pack_header(data, 0, 0, slices.VERSION, flags, 0, first, count, rows, accept_ms, base_ts, max_ts)
            pack_crc(data, 0, checksum(memoryview(data)[slices.CRC_FROM :], prefixes[index]))
            entries.append(SliceEntry(state.number, first, count, max_ts, at, length))
            at += length
        return entries

    def _push(
        self, unflushed: dict[int, int], frame: PendingFrame, entries: list[SliceEntry], place: FrameLocation
    ) -> None:
        push = self._delivery.push
        segment, created_ms, lsn = place.segment, frame.created_ms, place.lsn
        for (partition, first, count, max_ts, _, length), offset in zip(entries, place.offsets, strict=True):
            push(PendingSlice(partition, first, count, segment, offset, length, max_ts, created_ms, lsn, frame))
            unflushed[partition] = first + count
