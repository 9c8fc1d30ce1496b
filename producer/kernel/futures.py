# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The futures of the direct producer's records. Each holds a chunk and an index.

Part of the kernel (see `kernel.frames`): Cython in pure Python mode; the `.pxd` beside this file declares the fields.
"""

import cython

from ...api.futures import Future

if cython.compiled:
    from cython.cimports.penstock.producer.kernel.chunks import Chunk, AccumulatorPartition
else:
    from .chunks import Chunk, AccumulatorPartition


@cython.freelist(512)
@cython.no_gc
@cython.cclass
class DirectRecordFuture:
    """A record's future: a chunk and an index. The garbage collector can ignore it: cycles go through a chunk's
    watchers, which are dropped when the chunk is resolved, and every chunk is resolved in the end."""

    @property
    def index(self):
        return self._index

    @property
    def chunk(self):
        return self._chunk

    @property
    def was_appended(self) -> bool:
        """Whether the record was appended to a chunk. False for a record that was rejected at once."""
        return self._chunk.serial >= 0

    def done(self) -> bool:
        return self._index < self._chunk.completed or self._chunk.is_completed(self._index)

    def result(self, timeout=None):
        if self._index >= self._chunk.completed:
            self._chunk.part.owner.wait(self._chunk, self._index, timeout)
        return self._chunk.metadata(self._index, self._stamp)

    def exception(self, timeout=None):
        if self._index >= self._chunk.completed:
            self._chunk.part.owner.wait(self._chunk, self._index, timeout)
        return self._chunk.error(self._index)

    def add_done_callback(self, callback) -> None:
        if not self._chunk.part.owner.watch(self._chunk, (self, callback, False)):
            callback(self)


Future.register(DirectRecordFuture)


def failed_future(part: AccumulatorPartition, stamp, error):
    """The future of a record that was not appended."""
    chunk: Chunk = Chunk(part)
    chunk.count = 1
    chunk.resolve(0, 1, -1, -1, error)
    chunk.completed = 1
    future: DirectRecordFuture = DirectRecordFuture.__new__(DirectRecordFuture)
    future._chunk = chunk
    future._index = 0
    future._stamp = stamp
    return future


def run_callbacks(callbacks, report):
    """Run callbacks, given as alternating resolved futures and callbacks. `report` is called in the error handler."""
    i: cython.Py_ssize_t
    future: DirectRecordFuture
    for i in range(0, len(callbacks), 2):
        future = callbacks[i]
        error = future._chunk.error(future._index)
        try:
            if error is None:
                callbacks[i + 1](future._chunk.metadata(future._index, future._stamp), None)
            else:
                callbacks[i + 1](None, error)
        except BaseException:
            # `sys.exit` too: it would end the sender thread, which all records need.
            report()
