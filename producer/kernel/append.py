# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The hot path of the direct producer: turns a record into a row in the open chunk of its partition, and a future.

Part of the kernel (see `kernel.frames`): Cython in pure Python mode, the same bytes uncompiled. Rows are written under
the producer's lock. Rarer events are calls of the ports declared in `append.pyi`.
"""

from time import time_ns

import cython

from ...api.errors import PenstockError, TransactionStateError
from .arguments import byte_column, check_numbers, column, frozen, header_bytes, number_column

if cython.compiled:
    from cython.cimports.libc.string import memcpy
    from cython.cimports.posix.time import CLOCK_REALTIME, clock_gettime, timespec
    from cython.cimports.penstock.producer.kernel.chunks import Chunk, AccumulatorPartition, ChunkSpan, AccumulatorTopic
    from cython.cimports.penstock.producer.kernel.futures import DirectRecordFuture
    from cython.cimports.penstock.producer.kernel.slices import hash31
else:
    from .chunks import Chunk, AccumulatorPartition, ChunkSpan, AccumulatorTopic
    from .futures import DirectRecordFuture
    from .slices import hash31

ROW_HEAD_BYTES = cython.declare(cython.Py_ssize_t, 12)
ROW_BYTES_MIN = cython.declare(cython.Py_ssize_t, 15)
BATCH_BYTES = cython.declare(cython.Py_ssize_t, 61)
RECORD_BYTES = cython.declare(cython.Py_ssize_t, 21)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _size_bytes(size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Length of a size as zig-zag varint."""
    value: cython.ulonglong = 2 * size
    n: cython.Py_ssize_t = 1
    while value >= 0x80:
        value >>= 7
        n += 1
    return n


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _field_bytes(field: bytes | None) -> cython.Py_ssize_t:
    """Length of a key or value with its size; None takes the one byte of size -1."""
    return 1 if field is None else _size_bytes(len(field)) + len(field)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _body_bytes(key: bytes | None, value: bytes | None, tail: bytes | None) -> cython.Py_ssize_t:
    """Length of a row without its head."""
    return _field_bytes(key) + _field_bytes(value) + (1 if tail is None else len(tail))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put(out: cython.p_uchar, at: cython.Py_ssize_t, field: bytes) -> cython.Py_ssize_t:
    """Write bytes; returns the position after them."""
    if cython.compiled:
        memcpy(out + at, _bytes_of(field), len(field))
    else:
        out[at : at + len(field)] = field
    return at + len(field)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_field(out: cython.p_uchar, at: cython.Py_ssize_t, field: bytes | None) -> cython.Py_ssize_t:
    """Write a key or value after its size, -1 for None; returns the position after it."""
    value: cython.ulonglong = 1 if field is None else 2 * len(field)
    while value >= 0x80:
        out[at] = (value & 0x7F) | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1 if field is None else _put(out, at + 1, field)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _bytes_of(field: bytes) -> cython.p_const_uchar:
    return cython.cast(cython.p_const_uchar, field) if cython.compiled else memoryview(field)


@cython.cfunc
@cython.inline
def _wall_ms(clock) -> cython.longlong:
    """Ms since 1970 by this clock, or (None) by the system's."""
    if clock is not None:
        return clock()
    if cython.compiled:
        moment: timespec
        clock_gettime(CLOCK_REALTIME, cython.address(moment))
        return cython.cast(cython.longlong, moment.tv_sec) * 1000 + moment.tv_nsec // 1000000
    else:
        return time_ns() // 1000000


@cython.final
@cython.cclass
class RecordAppender:
    """The per-record part of the accumulator. `refusal`: why no record is accepted, or None; `transaction_epoch`: how
    often it was lifted: a record is appended in the epoch in which it was sent, or not at all. `wake_needed`: the sender
    thread must be woken. All three change under the lock."""

    refusal = cython.declare(object, visibility="public")
    transaction_epoch = cython.declare(cython.Py_ssize_t, visibility="public")
    wake_needed = cython.declare(cython.bint, visibility="public")
    _acquire = cython.declare(object)
    _release = cython.declare(object)
    _chunks = cython.declare(object)
    _topics = cython.declare(object)
    _metadata = cython.declare(object)
    _futures = cython.declare(object)
    _by_name = cython.declare(dict)
    _wall_clock = cython.declare(object)
    _ignore_keys = cython.declare(cython.bint)
    _asks_partitioner = cython.declare(cython.bint)
    _record_bytes_max = cython.declare(cython.Py_ssize_t)

    def __init__(self, lock, chunks, topics, metadata, futures, wall_clock, ignore_keys, record_bytes_max):
        """`lock`: the producer's; `wall_clock`: used instead of the system's clock, ms since 1970."""
        self.refusal = None
        self.transaction_epoch = 0
        self.wake_needed = False
        self._acquire, self._release = lock.acquire, lock.release
        self._chunks, self._topics, self._metadata, self._futures = chunks, topics, metadata, futures
        self._by_name = topics.by_name
        self._wall_clock = wall_clock
        self._ignore_keys = ignore_keys
        self._asks_partitioner = topics.partitioner is not None
        self._record_bytes_max = record_bytes_max

    @cython.ccall
    def check_accepting(self):
        """Raise `refusal`, unless it is None."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)

    @cython.cfunc
    def _chunk_for(
        self, place: AccumulatorTopic, index: cython.Py_ssize_t, row: cython.Py_ssize_t, began, epoch: cython.Py_ssize_t
    ):
        """An open chunk with capacity for the row, or an error; under the lock. `index` -1: the sticky partition."""
        part: AccumulatorPartition
        chunk: Chunk
        while True:
            if epoch != self.transaction_epoch:
                raise TransactionStateError("the transaction in which this was sent has ended before it was taken")
            part = place.parts[index if index >= 0 else place.sticky]
            if index < 0 and part.chunk is None:
                self._topics.rotate(place, True)
                part = place.parts[place.sticky]
            chunk = part.chunk
            if chunk is not None:
                if chunk.end + row <= chunk.capacity or self._chunks.grow(chunk, row):
                    return chunk
                continue
            error = self._chunks.open_chunk(part, row, began, place if index < 0 else None)
            if error is not None:
                return error
            chunk = part.chunk
            if chunk is not None and chunk.end + row <= chunk.capacity:
                return chunk

    @cython.cfunc
    @cython.inline
    def _write(
        self,
        chunk: Chunk,
        stamp: cython.longlong,
        body: cython.Py_ssize_t,
        key: bytes | None,
        value: bytes | None,
        tail: bytes | None,
        sticky_of: AccumulatorTopic | None,
    ):
        """Write a row into a chunk with capacity for it, and close the chunk if it is full now. `sticky_of`: the topic
        whose sticky partition it is, None if another rule chose the partition."""
        out: cython.p_uchar = chunk.out
        at: cython.Py_ssize_t = chunk.end
        i: cython.Py_ssize_t
        for i in range(8):
            out[at + i] = (stamp >> (8 * i)) & 0xFF
        for i in range(4):
            out[at + 8 + i] = (body >> (8 * i)) & 0xFF
        at = _put_field(out, _put_field(out, at + ROW_HEAD_BYTES, key), value)
        if tail is None:
            out[at] = 0
            at += 1
        else:
            at = _put(out, at, tail)
        if chunk.count == 0:
            chunk.base_ts = stamp
        chunk.max_ts = max(chunk.max_ts, stamp)
        chunk.count += 1
        chunk.end = at
        if chunk.limit - at < ROW_BYTES_MIN:
            self._chunks.close(chunk)
        if sticky_of is not None:
            sticky_of.sticky_bytes += body + ROW_HEAD_BYTES + (BATCH_BYTES if chunk.count == 1 else 0)
            if sticky_of.sticky_bytes >= sticky_of.allowance:
                self._topics.rotate(sticky_of, chunk.capacity == 0)

    @cython.ccall
    def append(self, topic, value, key, headers, partition, timestamp_ms, on_ack, began, epoch: cython.Py_ssize_t):
        """Append one record, with the arguments of `send`. `began`: when its caller started to wait (CLOCK_MONOTONIC
        seconds) or None; `epoch`: the transaction epoch in which it was sent."""
        key_bytes: bytes = None
        value_bytes: bytes = None
        tail: bytes = None
        index: cython.Py_ssize_t = -1
        body: cython.Py_ssize_t
        stamp: cython.longlong
        chunk: Chunk
        place: AccumulatorTopic
        if value is not None:
            value_bytes = value if type(value) is bytes else frozen(value, "value")
        if key is not None:
            key_bytes = key if type(key) is bytes else frozen(key, "key")
        if headers is not None:
            tail = header_bytes(headers)
        if partition is not None or timestamp_ms is not None:
            check_numbers(partition, timestamp_ms)
            if partition is not None:
                index = partition
        self.check_accepting()
        found = self._by_name.get(topic)
        if found is None or index >= cython.cast(AccumulatorTopic, found).count:
            since, found = self._metadata.wait_for_metadata(topic, partition)
            if began is None:
                began = since
            if not isinstance(found, AccumulatorTopic):
                return self._futures.failed(topic, index, found, on_ack)
        place = found
        if index < 0 and self._asks_partitioner:
            index = self._topics.ask_partitioner(place, key_bytes, value_bytes)
        if index < 0 and key_bytes is not None and not self._ignore_keys:
            index = hash31(_bytes_of(key_bytes), 0, len(key_bytes)) % place.count
        body = _body_bytes(key_bytes, value_bytes, tail)
        if body + BATCH_BYTES + RECORD_BYTES > self._record_bytes_max:
            return self._futures.failed(topic, index, self._chunks.too_large(body + BATCH_BYTES + RECORD_BYTES), on_ack)
        stamp = _wall_ms(self._wall_clock) if timestamp_ms is None else timestamp_ms
        future: DirectRecordFuture = DirectRecordFuture.__new__(DirectRecordFuture)
        self._acquire()
        try:
            found = self._chunk_for(place, index, body + ROW_HEAD_BYTES, began, epoch)
            chunk = found if type(found) is Chunk else None
            if chunk is not None:
                self._write(chunk, stamp, body, key_bytes, value_bytes, tail, place if index < 0 else None)
                future._chunk = chunk
                future._index = chunk.count - 1
                future._stamp = stamp
                if on_ack is not None:
                    if chunk.callbacks is None:
                        chunk.callbacks = []
                    chunk.callbacks.append(future)
                    chunk.callbacks.append(on_ack)
        finally:
            self._release()
        if self.wake_needed:
            self._chunks.wake_sender()
        return self._futures.failed(topic, index, found, on_ack) if chunk is None else future

    @cython.ccall
    def append_many(
        self, topic, values, keys, headers, partitions, timestamps_ms, on_ack, began, epoch: cython.Py_ssize_t
    ):
        """Append columns, with the arguments of `send_many`; else as `append`."""
        chunk: Chunk
        span: ChunkSpan
        place: AccumulatorTopic
        i: cython.Py_ssize_t
        index: cython.Py_ssize_t
        body: cython.Py_ssize_t
        largest: cython.Py_ssize_t = 0
        stamp: cython.longlong
        now: cython.longlong
        key: bytes = None
        value: bytes
        tail: bytes = None
        places: cython.p_int
        value_list: list = column(values, "values")
        n: cython.Py_ssize_t = len(value_list)
        if n == 0:
            raise ValueError("there is no record")
        value_list = byte_column(value_list, "value")
        key_list: list = None if keys is None else byte_column(column(keys, "keys", n), "key")
        tails: list = None
        if headers is not None:
            tails = [None if one is None else header_bytes(one) for one in column(headers, "headers", n)]
        wanted: list = None if partitions is None else number_column(partitions, n, 0)
        stamps: list = None if timestamps_ms is None else number_column(timestamps_ms, n, 1)
        self.check_accepting()
        highest = max([number for number in wanted or () if number is not None], default=None)
        found = self._by_name.get(topic)
        if found is None or (highest is not None and highest >= cython.cast(AccumulatorTopic, found).count):
            since, found = self._metadata.wait_for_metadata(topic, highest)
            if began is None:
                began = since
            if not isinstance(found, AccumulatorTopic):
                return self._futures.columns_future(topic, [], None, n, found, on_ack)
        place = found
        for i in range(n):
            body = 0 if value_list[i] is None else len(cython.cast(bytes, value_list[i]))
            if key_list is not None and key_list[i] is not None:
                body += len(cython.cast(bytes, key_list[i]))
            if tails is not None and tails[i] is not None:
                body += len(cython.cast(bytes, tails[i]))
            if body > largest:
                largest = body
        largest += 3 * _size_bytes(largest) + BATCH_BYTES + RECORD_BYTES
        if largest > self._record_bytes_max:
            return self._futures.columns_future(topic, [], None, n, self._chunks.too_large(largest), on_ack)
        if self._asks_partitioner:
            wanted = self._topics.ask_partitioner_for_each(place, key_list, value_list, wanted)
        scratch: bytearray = bytearray(4 * n)
        if cython.compiled:
            places = cython.cast(cython.p_int, cython.cast(cython.p_char, scratch))
        else:
            places = memoryview(scratch).cast("i")
        now = _wall_ms(self._wall_clock)
        spans: list = []
        failure = None
        self._acquire()
        try:
            for i in range(n):
                value = value_list[i]
                if key_list is not None:
                    key = key_list[i]
                if tails is not None:
                    tail = tails[i]
                index = -1
                if wanted is not None and wanted[i] is not None:
                    index = wanted[i]
                elif key is not None and not self._ignore_keys:
                    index = hash31(_bytes_of(key), 0, len(key)) % place.count
                stamp = now if stamps is None or stamps[i] is None else stamps[i]
                body = _body_bytes(key, value, tail)
                try:
                    found = self._chunk_for(place, index, body + ROW_HEAD_BYTES, began, epoch)
                except PenstockError as error:
                    if not spans:
                        raise
                    # The records before this one are sent normally: the future covers both.
                    found = error
                if type(found) is not Chunk:
                    failure = found
                    break
                chunk = found
                span = chunk.span
                if span is None or span.owner is not spans or span.first + span.count != chunk.count:
                    span = ChunkSpan(chunk, chunk.count, 0, spans)
                    chunk.span = span
                    spans.append(span)
                span.count += 1
                places[i] = cython.cast(AccumulatorPartition, chunk.part).index
                self._write(chunk, stamp, body, key, value, tail, place if index < 0 else None)
            for one in spans:
                span = one
                span.owner = None
                span.chunk.span = None
        finally:
            self._release()
        if self.wake_needed:
            self._chunks.wake_sender()
        return self._futures.columns_future(topic, spans, scratch, n, failure, on_ack)


@cython.cclass
class SendMethods:
    """The calls made once per record. `plugin_pipeline`, if set, takes them: it runs serializers and interceptors."""

    _appender = cython.declare(RecordAppender, visibility="public")
    plugin_pipeline = cython.declare(object, visibility="public")

    def send(self, topic, value, key=None, *, headers=None, partition=None, timestamp_ms=None, on_ack=None):
        """See the documentation of `direct.producer.DirectProducer`."""
        if self.plugin_pipeline is not None:
            return self.plugin_pipeline.send(topic, value, key, headers, partition, timestamp_ms, on_ack)
        owner: RecordAppender = self._appender
        return owner.append(topic, value, key, headers, partition, timestamp_ms, on_ack, None, owner.transaction_epoch)

    def send_many(self, topic, values, keys=None, *, headers=None, partitions=None, timestamps_ms=None, on_ack=None):
        """See the documentation of `direct.producer.DirectProducer`."""
        if self.plugin_pipeline is not None:
            return self.plugin_pipeline.send_many(topic, values, keys, headers, partitions, timestamps_ms, on_ack)
        owner: RecordAppender = self._appender
        return owner.append_many(
            topic, values, keys, headers, partitions, timestamps_ms, on_ack, None, owner.transaction_epoch
        )
