# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What the direct producer keeps per chunk, partition, topic and record; `kernel.append` fills chunks.

Part of the kernel (see `kernel.frames`): Cython in pure Python mode; the fields are declared in the `.pxd` beside this file. A chunk is
a slice (`wire/slices.py`) whose rows have their own timestamps; chunks change under the front's lock only.
"""

from bisect import insort

import cython

from ...api.metadata import RecordMetadata

HEADER_BYTES = 48
DELIVERED = "delivered"


def _first_of(piece):
    return piece[0]


@cython.cclass
class Chunk:
    """Records of one partition that travel as one slice, and what becomes of them.

    `resolved`: records from the start whose outcome is known; `told`: those whose callbacks have run as well, so that who waits
    may go on. `held`: records whose memory is still needed; it is `charge` bytes, which count for `node`. `pieces`: (first, end, offset of first, log append time, error).
    """

    def __init__(self, part):
        self.part = part
        self.data = None
        self.end = HEADER_BYTES
        self.room = 0
        self.limit = 0
        self.charge = 0
        self.node = -1
        self.count = 0
        self.created = 0.0
        self.base_ts = 0
        self.max_ts = 0
        self.serial = -1
        self.first = -1
        self.segment = 0
        self.resolved = 0
        self.told = 0
        self.held = 0
        self.pieces = []
        self.acks = None
        self.watchers = None
        self.span = None

    def use(self, data: bytearray):
        """Write into these bytes from now on; they hold what was written before."""
        self.data = data
        self.room = min(len(data), self.limit)
        if cython.compiled:
            self.out = cython.cast(cython.p_uchar, data)
        else:
            self.out = memoryview(data)

    def seal(self):
        """No row is written any more; returns the bytes."""
        data = self.data
        self.data = None
        self.room = 0
        if not cython.compiled:
            self.out = None
        return data

    def resolve(self, first: cython.Py_ssize_t, count: cython.Py_ssize_t, offset, log_append_ms, error) -> bool:
        """Fix the outcome of some records. False: they have failed before, and this comes too late.

        Asserts that they were not delivered before.
        """
        end: cython.Py_ssize_t = first + count
        for piece in self.pieces:
            if piece[0] < end and first < piece[1]:
                assert piece[4] is not None, "records are delivered once"
                return False
        insort(self.pieces, (first, end, offset, log_append_ms, error), key=_first_of)
        for piece in self.pieces:
            if piece[0] == self.resolved:
                self.resolved = piece[1]
        return True

    def fail_open(self, end: cython.Py_ssize_t, error):
        """All records before `end` that have no outcome have failed."""
        first: cython.Py_ssize_t = 0
        for piece in list(self.pieces):
            if piece[0] > first:
                self.resolve(first, piece[0] - first, -1, -1, error)
            first = piece[1]
        if first < end:
            self.resolve(first, end - first, -1, -1, error)

    def take_acks(self):
        """Futures and callbacks in turn, of `send`'s own, in the records' order; none while somebody else watches too, or while
        not all is resolved: then they are among the watchers."""
        acks = self.acks
        self.acks = None
        if acks is None:
            return ()
        if self.watchers is None and self.resolved == self.count:
            return acks
        mine = [(acks[i], acks[i + 1], True) for i in range(0, len(acks), 2)]
        self.watchers = mine + (self.watchers or [])
        return ()

    def take_watchers(self):
        """Those of resolved records, in the records' order: (future, callback, whether it takes metadata and error)."""
        watchers = self.watchers
        if watchers is None:
            return ()
        if self.resolved == self.count:
            self.watchers = None
        else:
            rest = [watcher for watcher in watchers if self.piece(watcher[0].index) is None]
            watchers = [watcher for watcher in watchers if self.piece(watcher[0].index) is not None]
            self.watchers = rest or None
        watchers.sort(key=_index_of)
        return watchers

    def piece(self, index: cython.Py_ssize_t):
        """The piece that a record is part of, None while its outcome is open."""
        for piece in self.pieces:
            if piece[0] <= index < piece[1]:
                return piece
        return None

    def next_open(self, first: cython.Py_ssize_t, end: cython.Py_ssize_t):
        """The first record from `first` on whose outcome is open; `end` where there is none before it."""
        for piece in self.pieces:
            if piece[0] <= first < piece[1]:
                first = piece[1]
        return min(first, end)

    def is_told(self, index: cython.Py_ssize_t) -> bool:
        """Whether the outcome may be looked at: its callbacks have run, or the caller is one of them."""
        if index < self.told:
            return True
        # `told` counts from the start only; records that failed before their turn lie behind it.
        return self.piece(index) is not None and self.part.front.has_told(self)

    def metadata(self, index: cython.Py_ssize_t, stamp):
        """Where a record went.

        Raises:
            PenstockError: what became of it instead.
        """
        piece = self.piece(index)
        error = piece[4]
        if error is not None:
            raise error.with_traceback(None)
        offset = piece[2] + index - piece[0] if piece[2] >= 0 else -1
        part = self.part
        stamp = piece[3] if piece[3] >= 0 else stamp
        return tuple.__new__(RecordMetadata, (part.topic, part.index, offset, stamp, DELIVERED, part.front.weak))

    def error(self, index: cython.Py_ssize_t):
        """What a resolved record has failed with, or None."""
        return self.piece(index)[4]


def _index_of(watcher):
    return watcher[0].index


@cython.cclass
class Part:
    """A partition as the front sees it. `chunk` is the open one; `sealed` those with the sender, oldest first. `node` leads it."""

    def __init__(self, front, topic: str, index: cython.Py_ssize_t):
        self.front = front
        self.topic = topic
        self.index = index
        self.chunk = None
        self.sealed = None
        self.next_ordinal = 0
        self.open_bytes = 0
        self.node = -1


@cython.cclass
class Topic:
    """A topic whose partitions are known. `sticky` takes records that have no say in it, until `allowance` bytes of them."""

    def __init__(self, name: str, keyless):
        self.name = name
        self.parts = []
        self.count = 0
        self.keyless = keyless
        self.sticky = 0
        self.allowance = 0
        self.used = 0
        self.used_at = 0.0


@cython.cclass
class Span:
    """Consecutive records of a chunk that one `send_many` brought."""

    def __init__(self, chunk: Chunk, first: cython.Py_ssize_t, count: cython.Py_ssize_t, owner):
        self.chunk = chunk
        self.first = first
        self.count = count
        self.owner = owner
