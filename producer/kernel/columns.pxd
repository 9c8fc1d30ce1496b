cdef enum:
    PARTITION = 0
    KEY_AT = 1
    KEY_SIZE = 2
    VALUE_AT = 3
    VALUE_SIZE = 4
    HEADERS_AT = 5
    HEADERS_COUNT = 6
    BODY_BYTES = 7
    ORDER = 8
    COLUMNS = 9

cdef Py_ssize_t count_records(const unsigned char *p, Py_ssize_t at, Py_ssize_t end) except? -2
cdef int walk(
    const unsigned char *p,
    Py_ssize_t at,
    Py_ssize_t end,
    Py_ssize_t n,
    int *items,
    long long *stamps,
    long long now_ms,
    Py_ssize_t partition_count,
    Py_ssize_t header_count_max,
    tuple reserved,
) except? -1
