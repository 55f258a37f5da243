# The native thread pool, one for the process (pool.h); the tiers cimport run_units and thread_count.

cdef extern from "pool.h":
    ctypedef void (*c_unit "pool_unit")(void* context, int64_t unit, int worker) noexcept nogil
    int pool_run(c_unit unit, void* context, int64_t count, int most) noexcept nogil
    int pool_resize(int threads) noexcept nogil
    bint pool_forked() noexcept nogil
    int pool_threads() noexcept nogil


cdef int run_units(pool_unit unit, void* context, int64_t count, int most) noexcept nogil:
    return pool_run(unit, context, count, most)


cdef int thread_count() noexcept nogil:
    return pool_threads()


def resize(int threads):
    cdef int failed
    with nogil:
        failed = pool_resize(threads)
    return failed == 0


def threads():
    return pool_threads()


def forked():
    return pool_forked()
