cimport cython

from penstock.producer.kernel.chunks cimport Chunk

@cython.final
cdef class DirectRecordFuture:
    cdef Chunk _chunk
    cdef Py_ssize_t _index
    cdef long long _stamp
