# Reading what attention reads, for the benchmarks: every kv head's keys, values and scales of ring pages,
# in the order of attend_head. Means, exponents and tails are left out, as attention leaves them out.

from libc.stdint cimport uint64_t

cdef extern from "bandwidth.h":
    enum:
        READ_VARIANTS
    uint64_t read_run(const char*, int64_t, const char*, int) noexcept nogil

cdef inline int64_t read_bytes(const Geometry* g) noexcept nogil:
    cdef int64_t scales = 0 if g.storage == STORE_FLOAT32 else 4 * PAGE_SLOTS
    return key_bytes(g, PAGE_SLOTS) + value_bytes(g, PAGE_SLOTS) + scales


def read_pages(const int64_t[::1] words, uintptr_t base, const int64_t[::1] table, int64_t start, int64_t stop,
               int variant):
    cdef Geometry g = geometry_from(words)
    cdef int64_t bytes = read_bytes(&g)
    cdef int64_t ring_page, following
    cdef uint64_t checksum = 0
    cdef int head
    if not 0 <= variant < READ_VARIANTS:
        raise ValueError(f"variant must be from 0 to {READ_VARIANTS - 1}, got {variant}")
    if not 0 <= start <= stop < table.shape[0]:
        raise ValueError(f"ring pages must be within 0 to {table.shape[0] - 1}, got {start} to {stop}")
    for ring_page in range(start, stop):
        if table[1 + ring_page] < 0:
            raise ValueError(f"ring page {ring_page} is not there")
    with nogil:
        for head in range(g.kv_heads):
            for ring_page in range(start, stop):
                following = ring_page + 1 if ring_page + 1 < stop else start
                checksum ^= read_run(
                    <char*>base + table[1 + ring_page] + head * g.ring_run, bytes,
                    <char*>base + table[1 + following] + head * g.ring_run, variant,
                )
    return checksum
