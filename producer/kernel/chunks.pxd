cdef class Chunk:
    cdef public object part
    cdef public object data
    cdef public Py_ssize_t end
    cdef public Py_ssize_t capacity
    cdef public Py_ssize_t limit
    cdef public Py_ssize_t reserved_bytes
    cdef public Py_ssize_t node
    cdef public Py_ssize_t count
    cdef public double created
    cdef public long long base_ts
    cdef public long long max_ts
    cdef public long long serial
    cdef public long long first
    cdef public long long segment
    cdef public Py_ssize_t resolved
    cdef public Py_ssize_t completed
    cdef public Py_ssize_t unreleased
    cdef public list outcomes
    cdef public list callbacks
    cdef public list watchers
    cdef public object span
    cdef unsigned char *out

cdef class AccumulatorPartition:
    cdef public object owner
    cdef public str topic
    cdef public Py_ssize_t index
    cdef public Chunk chunk
    cdef public object sealed
    cdef public long long next_ordinal
    cdef public Py_ssize_t initial_chunk_bytes
    cdef public Py_ssize_t node

cdef class AccumulatorTopic:
    cdef public str name
    cdef public list parts
    cdef public Py_ssize_t count
    cdef public object keyless
    cdef public Py_ssize_t sticky
    cdef public Py_ssize_t allowance
    cdef public Py_ssize_t sticky_bytes
    cdef public double used_at

cdef class ChunkSpan:
    cdef public Chunk chunk
    cdef public Py_ssize_t first
    cdef public Py_ssize_t count
    cdef public object owner
