from libc.stdint cimport int64_t

ctypedef void (*pool_unit)(void* context, int64_t unit, int worker) noexcept nogil

cdef int run_units(pool_unit unit, void* context, int64_t count, int most) noexcept nogil
cdef int thread_count() noexcept nogil
