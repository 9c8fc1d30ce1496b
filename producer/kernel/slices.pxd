cdef unsigned int hash31(const unsigned char *p, Py_ssize_t at, Py_ssize_t size) noexcept
cdef Py_ssize_t measure(
    const unsigned char *p,
    Py_ssize_t n,
    int *items,
    int *counts,
    Py_ssize_t partition_count,
    Py_ssize_t sticky,
    bint ignore_keys,
    Py_ssize_t record_bytes_max,
) except? -1
cdef tuple cut(
    const unsigned char *p,
    Py_ssize_t end,
    Py_ssize_t n,
    int *items,
    int *counts,
    long long *stamps,
    bint own,
    Py_ssize_t partition_count,
)
