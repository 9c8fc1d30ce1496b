cdef enum:
    NIL = -1
    NO_SIZE = -3
    OUT_OF_RANGE = -1
    NO_NUMBER = -3

cdef cut_short(str what)
cdef refuse(Py_ssize_t record, str text, str code)
cdef unexpected(const unsigned char *p, Py_ssize_t at, str text)
cdef check_range(Py_ssize_t length, Py_ssize_t start, Py_ssize_t end)
cdef Py_ssize_t u16(const unsigned char *p, Py_ssize_t at) noexcept
cdef Py_ssize_t u32(const unsigned char *p, Py_ssize_t at) noexcept
cdef Py_ssize_t array_size(const unsigned char *p, Py_ssize_t at, Py_ssize_t end, str what) except? -2
cdef Py_ssize_t array_head(unsigned int tag) noexcept
cdef Py_ssize_t bytes_size(const unsigned char *p, Py_ssize_t at, Py_ssize_t end, str what) except? -2
cdef Py_ssize_t bytes_head(unsigned int tag) noexcept
cdef Py_ssize_t text_size(const unsigned char *p, Py_ssize_t at, Py_ssize_t end, str what) except? -2
cdef Py_ssize_t text_head(unsigned int tag) noexcept
cdef long long number(const unsigned char *p, Py_ssize_t at, Py_ssize_t end, str what) except? -2
cdef Py_ssize_t number_bytes(unsigned int tag) noexcept
