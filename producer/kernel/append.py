# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The hot path of the direct producer: turns a record into a row in the open chunk of its partition, and a future.

Part of the kernel (see `kernel.frames`): Cython in pure Python mode, the same bytes uncompiled. Rows are written under
the appender's lock. Its subclass `direct.futures_front.Front` handles rarer events (`open`, `grow`,
`wait_for_metadata`, ...).
"""

from time import time_ns

import cython

from ...api.errors import PenstockError
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
_empty = cython.declare(bytes, b"")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _size_bytes(size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Length of a size as zig-zag varint; -1 is allowed."""
    value: cython.ulonglong = 2 * size if size >= 0 else 1
    n: cython.Py_ssize_t = 1
    while value >= 0x80:
        value >>= 7
        n += 1
    return n


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_field(
    out: cython.p_uchar, at: cython.Py_ssize_t, field: cython.p_const_uchar, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write a size (-1 is null) and then the key or value; returns the position after it."""
    value: cython.ulonglong = 2 * size if size >= 0 else 1
    while value >= 0x80:
        out[at] = (value & 0x7F) | 0x80
        value >>= 7
        at += 1
    out[at] = value
    at += 1
    if size > 0:
        if cython.compiled:
            memcpy(out + at, field, size)
        else:
            out[at : at + size] = field[0:size]
        at += size
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _bytes_of(field: bytes) -> cython.p_const_uchar:
    if cython.compiled:
        return cython.cast(cython.p_const_uchar, field)
    else:
        return memoryview(field)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _wall_ms() -> cython.longlong:
    if cython.compiled:
        moment: timespec
        clock_gettime(CLOCK_REALTIME, cython.address(moment))
        return cython.cast(cython.longlong, moment.tv_sec) * 1000 + moment.tv_nsec // 1000000
    else:
        return time_ns() // 1000000


@cython.cclass
class RecordAppender:
    """The per-record part of the accumulator, which sets these fields. `acquire` and `release`: of its lock. `refusal`:
    why no record is accepted, or None. `transaction_epoch`: how often `refusal` was lifted; a record is appended in the
    epoch in which it was sent, or not at all. `wall_clock`: used instead of the system's clock, ms since 1970.
    `wake_needed`: the sender thread must be woken."""

    topics = cython.declare(dict, visibility="public")
    acquire = cython.declare(object, visibility="public")
    release = cython.declare(object, visibility="public")
    refusal = cython.declare(object, visibility="public")
    transaction_epoch = cython.declare(cython.Py_ssize_t, visibility="public")
    wall_clock = cython.declare(object, visibility="public")
    partitioner = cython.declare(object, visibility="public")
    wake_needed = cython.declare(cython.bint, visibility="public")
    ignore_keys = cython.declare(cython.bint, visibility="public")
    single_replica = cython.declare(cython.bint, visibility="public")
    record_bytes_max = cython.declare(cython.Py_ssize_t, visibility="public")

    @cython.cfunc
    def _chunk_for(
        self,
        place: AccumulatorTopic,
        index: cython.Py_ssize_t,
        row: cython.Py_ssize_t,
        began: object,
        transaction_epoch: cython.Py_ssize_t,
    ):
        """An open chunk with capacity for the row, or an error; under the lock. `index` -1: the sticky partition."""
        part: AccumulatorPartition
        chunk: Chunk
        while True:
            if transaction_epoch != self.transaction_epoch:
                self.raise_transaction_ended()
            part = place.parts[index if index >= 0 else place.sticky]
            if index < 0 and part.chunk is None:
                self.rotate(place, True)
                part = place.parts[place.sticky]
            chunk = part.chunk
            if chunk is not None:
                if chunk.end + row <= chunk.capacity or self.grow(chunk, row):
                    return chunk
                continue
            error = self.open(part, row, began, place if index < 0 else None)
            if error is not None:
                return error
            chunk = part.chunk
            if chunk is not None and chunk.end + row <= chunk.capacity:
                return chunk

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _put(
        self,
        chunk: Chunk,
        stamp: cython.longlong,
        body: cython.Py_ssize_t,
        key: bytes,
        key_size: cython.Py_ssize_t,
        value: bytes,
        value_size: cython.Py_ssize_t,
        tail: bytes,
        tail_size: cython.Py_ssize_t,
    ) -> cython.void:
        out: cython.p_uchar = chunk.out
        at: cython.Py_ssize_t = chunk.end
        i: cython.Py_ssize_t
        for i in range(8):
            out[at + i] = (stamp >> (8 * i)) & 0xFF
        for i in range(4):
            out[at + 8 + i] = (body >> (8 * i)) & 0xFF
        at = _put_field(out, at + 12, _bytes_of(key if key_size > 0 else _empty), key_size)
        at = _put_field(out, at, _bytes_of(value if value_size > 0 else _empty), value_size)
        if tail_size == 0:
            out[at] = 0
            at += 1
        elif cython.compiled:
            memcpy(out + at, _bytes_of(tail), tail_size)
            at += tail_size
        else:
            out[at : at + tail_size] = tail
            at += tail_size
        if chunk.count == 0:
            chunk.base_ts = stamp
        chunk.max_ts = max(chunk.max_ts, stamp)
        chunk.count += 1
        chunk.end = at

    @cython.cfunc
    @cython.inline
    def _appended(self, place: AccumulatorTopic, chunk: Chunk, grown: cython.Py_ssize_t, keyless: cython.bint):
        """Close the chunk if it is full, and count the bytes of the sticky partition."""
        if chunk.limit - chunk.end < ROW_BYTES_MIN:
            self.close(chunk)
        if keyless:
            place.sticky_bytes += grown + (BATCH_BYTES if chunk.count == 1 else 0)
            if place.sticky_bytes >= place.allowance:
                self.rotate(place, chunk.capacity == 0)

    def append(self, topic, value, key, headers, partition, timestamp_ms, on_ack, began, transaction_epoch):
        """Append one record, with the arguments of `send`. `began`: when its caller started to wait (CLOCK_MONOTONIC
        seconds) or None; `transaction_epoch`: the epoch in which it was sent."""
        return self._append(topic, value, key, headers, partition, timestamp_ms, on_ack, began, transaction_epoch)

    def append_many(self, topic, values, keys, headers, partitions, timestamps_ms, on_ack, began, transaction_epoch):
        """Append columns, with the arguments of `send_many`."""
        return self._append_many(
            topic, values, keys, headers, partitions, timestamps_ms, on_ack, began, transaction_epoch
        )

    @cython.cfunc
    def _append(
        self, topic, value, key, headers, partition, timestamp_ms, on_ack, began, transaction_epoch: cython.Py_ssize_t
    ):
        key_bytes: bytes = _empty
        value_bytes: bytes = _empty
        tail: bytes = _empty
        key_size: cython.Py_ssize_t = -1
        value_size: cython.Py_ssize_t = -1
        tail_size: cython.Py_ssize_t = 0
        index: cython.Py_ssize_t = -1
        body: cython.Py_ssize_t
        stamp: cython.longlong
        chunk: Chunk
        place: AccumulatorTopic
        if value is not None:
            value_bytes = value if type(value) is bytes else frozen(value, "value")
            value_size = len(value_bytes)
        if key is not None:
            key_bytes = key if type(key) is bytes else frozen(key, "key")
            key_size = len(key_bytes)
        if headers is not None:
            tail = header_bytes(headers)
            tail_size = len(tail)
        if partition is not None or timestamp_ms is not None:
            check_numbers(partition, timestamp_ms)
            if partition is not None:
                index = partition
        if self.refusal is not None:
            self.refuse()
        found = self.topics.get(topic)
        if found is None or index >= cython.cast(AccumulatorTopic, found).count:
            since, found = self.wait_for_metadata(topic, partition)
            if began is None:
                began = since
            if not isinstance(found, AccumulatorTopic):
                return self.failed(topic, index, found, on_ack)
        place = found
        if index < 0:
            if self.partitioner is not None:
                index = self.ask_partitioner(
                    place, None if key is None else key_bytes, None if value is None else value_bytes
                )
            if index < 0 and key_size >= 0 and not self.ignore_keys:
                index = hash31(_bytes_of(key_bytes), 0, key_size) % place.count
        body = key_size if key_size > 0 else 0
        body += value_size if value_size > 0 else 0
        body += _size_bytes(key_size) + _size_bytes(value_size) + (tail_size if tail_size > 0 else 1)
        if body + BATCH_BYTES + RECORD_BYTES > self.record_bytes_max:
            return self.failed(topic, index, self.too_large(body + BATCH_BYTES + RECORD_BYTES), on_ack)
        if timestamp_ms is not None:
            stamp = timestamp_ms
        elif self.wall_clock is None:
            stamp = _wall_ms()
        else:
            stamp = self.wall_clock()
        future: DirectRecordFuture = DirectRecordFuture.__new__(DirectRecordFuture)
        self.acquire()
        try:
            found = self._chunk_for(place, index, body + ROW_HEAD_BYTES, began, transaction_epoch)
            chunk = found if type(found) is Chunk else None
            if chunk is not None:
                self._put(chunk, stamp, body, key_bytes, key_size, value_bytes, value_size, tail, tail_size)
                future._chunk = chunk
                future._index = chunk.count - 1
                future._stamp = stamp
                if on_ack is not None:
                    if chunk.callbacks is None:
                        chunk.callbacks = []
                    chunk.callbacks.append(future)
                    chunk.callbacks.append(on_ack)
                self._appended(place, chunk, body + ROW_HEAD_BYTES, index < 0)
        finally:
            self.release()
        if self.wake_needed:
            self.wake_sender()
        if chunk is None:
            return self.failed(topic, index, found, on_ack)
        return future

    @cython.cfunc
    def _append_many(
        self,
        topic,
        values,
        keys,
        headers,
        partitions,
        timestamps_ms,
        on_ack,
        began,
        transaction_epoch: cython.Py_ssize_t,
    ):
        chunk: Chunk
        span: ChunkSpan
        place: AccumulatorTopic
        part: AccumulatorPartition
        i: cython.Py_ssize_t
        index: cython.Py_ssize_t
        body: cython.Py_ssize_t
        largest: cython.Py_ssize_t = 0
        tail_size: cython.Py_ssize_t
        key_size: cython.Py_ssize_t
        value_size: cython.Py_ssize_t
        stamp: cython.longlong
        now: cython.longlong
        key_bytes: bytes
        value_bytes: bytes
        tail: bytes
        places: cython.p_int
        value_list: list = column(values, "values")
        n: cython.Py_ssize_t = len(value_list)
        if n == 0:
            raise ValueError("there is no record")
        value_list = byte_column(value_list, "value")
        key_list: list = None if keys is None else byte_column(column(keys, "keys", n), "key")
        tails: list = (
            None
            if headers is None
            else [_empty if one is None else header_bytes(one) for one in column(headers, "headers", n)]
        )
        wanted: list = None if partitions is None else number_column(partitions, n, 0)
        stamps: list = None if timestamps_ms is None else number_column(timestamps_ms, n, 1)
        if self.refusal is not None:
            self.refuse()
        highest = None
        if wanted is not None:
            highest = max([number for number in wanted if number is not None], default=None)
        found = self.topics.get(topic)
        if found is None or (highest is not None and highest >= cython.cast(AccumulatorTopic, found).count):
            since, found = self.wait_for_metadata(topic, highest)
            if began is None:
                began = since
            if not isinstance(found, AccumulatorTopic):
                return self.columns_future(topic, [], None, n, found, on_ack)
        place = found
        for i in range(n):
            value_bytes = value_list[i]
            body = 0 if value_bytes is None else len(value_bytes)
            if key_list is not None and key_list[i] is not None:
                body += len(cython.cast(bytes, key_list[i]))
            if tails is not None:
                body += len(cython.cast(bytes, tails[i]))
            if body > largest:
                largest = body
        largest += 3 * _size_bytes(largest) + BATCH_BYTES + RECORD_BYTES
        if largest > self.record_bytes_max:
            return self.columns_future(topic, [], None, n, self.too_large(largest), on_ack)
        if self.partitioner is not None:
            wanted = self.ask_partitioner_for_each(place, key_list, value_list, wanted)
        scratch: bytearray = bytearray(4 * n)
        if cython.compiled:
            places = cython.cast(cython.p_int, cython.cast(cython.p_char, scratch))
        else:
            places = memoryview(scratch).cast("i")
        now = _wall_ms() if self.wall_clock is None else self.wall_clock()
        spans: list = []
        failure = None
        key_bytes = _empty
        key_size = -1
        tail = _empty
        tail_size = 0
        self.acquire()
        try:
            for i in range(n):
                value_bytes = _empty
                value_size = -1
                if value_list[i] is not None:
                    value_bytes = value_list[i]
                    value_size = len(value_bytes)
                if key_list is not None:
                    key_bytes = _empty
                    key_size = -1
                    if key_list[i] is not None:
                        key_bytes = key_list[i]
                        key_size = len(key_bytes)
                if tails is not None:
                    tail = tails[i]
                    tail_size = len(tail)
                index = -1
                if wanted is not None and wanted[i] is not None:
                    index = wanted[i]
                elif key_size >= 0 and not self.ignore_keys:
                    index = hash31(_bytes_of(key_bytes), 0, key_size) % place.count
                stamp = now
                if stamps is not None and stamps[i] is not None:
                    stamp = stamps[i]
                body = key_size if key_size > 0 else 0
                body += value_size if value_size > 0 else 0
                body += _size_bytes(key_size) + _size_bytes(value_size) + (tail_size if tail_size > 0 else 1)
                try:
                    found = self._chunk_for(place, index, body + ROW_HEAD_BYTES, began, transaction_epoch)
                except PenstockError as error:
                    if not spans:
                        raise
                    # The records before this one are sent normally: the future covers both.
                    found = self.partial_send_error(error)
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
                part = chunk.part
                places[i] = part.index
                self._put(chunk, stamp, body, key_bytes, key_size, value_bytes, value_size, tail, tail_size)
                self._appended(place, chunk, body + ROW_HEAD_BYTES, index < 0)
            for one in spans:
                span = one
                span.owner = None
                span.chunk.span = None
        finally:
            self.release()
        if self.wake_needed:
            self.wake_sender()
        return self.columns_future(topic, spans, scratch, n, failure, on_ack)


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
        return owner._append(topic, value, key, headers, partition, timestamp_ms, on_ack, None, owner.transaction_epoch)

    def send_many(self, topic, values, keys=None, *, headers=None, partitions=None, timestamps_ms=None, on_ack=None):
        """See the documentation of `direct.producer.DirectProducer`."""
        if self.plugin_pipeline is not None:
            return self.plugin_pipeline.send_many(topic, values, keys, headers, partitions, timestamps_ms, on_ack)
        owner: RecordAppender = self._appender
        return owner._append_many(
            topic, values, keys, headers, partitions, timestamps_ms, on_ack, None, owner.transaction_epoch
        )
