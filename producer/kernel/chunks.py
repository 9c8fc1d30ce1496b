# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The direct producer's state per chunk, partition and topic; `kernel.append` fills the chunks.

Part of the kernel (see `kernel.frames`): Cython in pure Python mode; the `.pxd` beside this file declares the fields. A
chunk is a slice (`wire/slices.py`) whose rows have their own timestamps. It changes only under the owner's lock.
"""

from bisect import insort

import cython

from ...api.metadata import RecordMetadata

HEADER_BYTES = 48
DELIVERED = "delivered"


def _first_of(outcome_at):
    return outcome_at[0]


@cython.cclass
class Chunk:
    """Records of one partition that are sent as one slice, and their outcomes.

    `resolved`: number of records from the start with a known outcome; `completed`: those whose callbacks have run too,
    so that their waiters may return. `unreleased`: number of records whose memory is still needed; the chunk uses
    `reserved_bytes` of the budget of `node`. `outcomes`: (first, end, offset of first, log append time, error).
    """

    def __init__(self, part):
        self.part = part
        self.data = None
        self.end = HEADER_BYTES
        self.capacity = 0
        self.limit = 0
        self.reserved_bytes = 0
        self.node = -1
        self.count = 0
        self.created = 0.0
        self.base_ts = 0
        self.max_ts = 0
        self.serial = -1
        self.first = -1
        self.segment = 0
        self.resolved = 0
        self.completed = 0
        self.unreleased = 0
        self.outcomes = []
        self.callbacks = None
        self.watchers = None
        self.span = None

    def use(self, data: bytearray):
        """Write into `data` from now on. It must already contain the rows written so far."""
        self.data = data
        self.capacity = min(len(data), self.limit)
        if cython.compiled:
            self.out = cython.cast(cython.p_uchar, data)
        else:
            self.out = memoryview(data)

    def seal(self):
        """End writing, and return the chunk's bytes."""
        data = self.data
        self.data = None
        self.capacity = 0
        if not cython.compiled:
            self.out = None
        return data

    def resolve(self, first: cython.Py_ssize_t, count: cython.Py_ssize_t, offset, log_append_ms, error) -> bool:
        """Set the outcome of `count` records. False: they have failed before, so this outcome is ignored.

        Asserts that they were not delivered before.
        """
        end: cython.Py_ssize_t = first + count
        for outcome_at in self.outcomes:
            if outcome_at[0] < end and first < outcome_at[1]:
                assert outcome_at[4] is not None, "records are delivered once"
                return False
        insort(self.outcomes, (first, end, offset, log_append_ms, error), key=_first_of)
        for outcome_at in self.outcomes:
            if outcome_at[0] == self.resolved:
                self.resolved = outcome_at[1]
        return True

    def fail_unresolved(self, end: cython.Py_ssize_t, error):
        """Fail all records before `end` that have no outcome."""
        first: cython.Py_ssize_t = 0
        for outcome_at in list(self.outcomes):
            if outcome_at[0] > first:
                self.resolve(first, outcome_at[0] - first, -1, -1, error)
            first = outcome_at[1]
        if first < end:
            self.resolve(first, end - first, -1, -1, error)

    def take_callbacks(self):
        """The futures and `on_ack` callbacks of `send`, alternating, in the order of the records. Empty if there are
        other watchers, or unresolved records: then they move to the watchers."""
        callbacks = self.callbacks
        self.callbacks = None
        if callbacks is None:
            return ()
        if self.watchers is None and self.resolved == self.count:
            return callbacks
        mine = [(callbacks[i], callbacks[i + 1], True) for i in range(0, len(callbacks), 2)]
        self.watchers = mine + (self.watchers or [])
        return ()

    def take_watchers(self):
        """The watchers of resolved records, in their order: (future, callback, whether it takes metadata and error)."""
        watchers = self.watchers
        if watchers is None:
            return ()
        if self.resolved == self.count:
            self.watchers = None
        else:
            rest = [watcher for watcher in watchers if self.outcome_at(watcher[0].index) is None]
            watchers = [watcher for watcher in watchers if self.outcome_at(watcher[0].index) is not None]
            self.watchers = rest or None
        watchers.sort(key=_index_of)
        return watchers

    def outcome_at(self, index: cython.Py_ssize_t):
        """The item of `outcomes` that covers a record, None if it has no outcome yet."""
        for outcome_at in self.outcomes:
            if outcome_at[0] <= index < outcome_at[1]:
                return outcome_at
        return None

    def next_open(self, first: cython.Py_ssize_t, end: cython.Py_ssize_t):
        """The first record from `first` on without an outcome, `end` if there is none before it."""
        for outcome_at in self.outcomes:
            if outcome_at[0] <= first < outcome_at[1]:
                first = outcome_at[1]
        return min(first, end)

    def is_completed(self, index: cython.Py_ssize_t) -> bool:
        """Whether the outcome may be read: its callbacks have run, or the caller is one of them."""
        if index < self.completed:
            return True
        # `completed` counts from the start only; records that failed out of order come after it.
        return self.outcome_at(index) is not None and self.part.owner.callbacks_done(self)

    def metadata(self, index: cython.Py_ssize_t, stamp):
        """A resolved record's metadata.

        Raises:
            PenstockError: the record has failed.
        """
        outcome_at = self.outcome_at(index)
        error = outcome_at[4]
        if error is not None:
            raise error.with_traceback(None)
        offset = outcome_at[2] + index - outcome_at[0] if outcome_at[2] >= 0 else -1
        part = self.part
        stamp = outcome_at[3] if outcome_at[3] >= 0 else stamp
        return tuple.__new__(
            RecordMetadata, (part.topic, part.index, offset, stamp, DELIVERED, part.owner.single_replica)
        )

    def error(self, index: cython.Py_ssize_t):
        """A resolved record's error, or None."""
        return self.outcome_at(index)[4]


def _index_of(watcher):
    return watcher[0].index


@cython.cclass
class AccumulatorPartition:
    """A partition of the accumulator. `chunk`: open chunk; `sealed`: sealed ones, oldest first; `node`: its leader."""

    def __init__(self, owner, topic: str, index: cython.Py_ssize_t):
        self.owner = owner
        self.topic = topic
        self.index = index
        self.chunk = None
        self.sealed = None
        self.next_ordinal = 0
        self.initial_chunk_bytes = 0
        self.node = -1


@cython.cclass
class AccumulatorTopic:
    """A topic with known partitions. Keyless records go to partition `sticky` until they reach `allowance` bytes."""

    def __init__(self, name: str, keyless):
        self.name = name
        self.parts = []
        self.count = 0
        self.keyless = keyless
        self.sticky = 0
        self.allowance = 0
        self.sticky_bytes = 0
        self.used_at = 0.0


@cython.cclass
class ChunkSpan:
    """Consecutive records of a chunk from one `send_many`."""

    def __init__(self, chunk: Chunk, first: cython.Py_ssize_t, count: cython.Py_ssize_t, owner):
        self.chunk = chunk
        self.first = first
        self.count = count
        self.owner = owner
