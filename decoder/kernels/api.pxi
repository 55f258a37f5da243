# The Python face of a tier: checks sizes once, releases the GIL, calls one kernel. The session has validated
# everything that a caller can get wrong; the checks here keep a mistake of ours from becoming a wild pointer.

from libc.stdlib cimport free

cdef extern from "stdlib.h" nogil:
    void* aligned_alloc(size_t alignment, size_t size)


def place(const int64_t[::1] words, uintptr_t base, const int64_t[::1] table, int64_t first,
          const float[:, :, ::1] k, const float[:, :, ::1] v):
    cdef Geometry g = geometry_from(words)
    check_tokens(&g, table, first, k, v)
    if k.shape[0]:
        with nogil:
            place_tokens(&g, <char*>base, &table[0], first, k.shape[0], &k[0, 0, 0], &v[0, 0, 0])


def same(const int64_t[::1] words, uintptr_t base, const int64_t[::1] table, int64_t first,
         const float[:, :, ::1] k, const float[:, :, ::1] v):
    cdef Geometry g = geometry_from(words)
    cdef bint equal = True
    check_tokens(&g, table, first, k, v)
    if k.shape[0]:
        with nogil:
            equal = same_tokens(&g, <char*>base, &table[0], first, k.shape[0], &k[0, 0, 0], &v[0, 0, 0])
    return equal


def read(const int64_t[::1] words, uintptr_t base, const int64_t[::1] table, int64_t first,
         float[:, :, ::1] k, float[:, :, ::1] v):
    cdef Geometry g = geometry_from(words)
    check_tokens(&g, table, first, k, v)
    if k.shape[0]:
        with nogil:
            read_tokens(&g, <char*>base, &table[0], first, k.shape[0], &k[0, 0, 0], &v[0, 0, 0])


def attend(const int64_t[::1] words, uintptr_t base, const int64_t[::1] table, int64_t first, float scale,
           const float[:, :, ::1] q, float[:, :, ::1] out, float[:, ::1] lse):
    cdef Geometry g = geometry_from(words)
    cdef int64_t rows = q.shape[0]
    cdef int heads = g.kv_heads * g.group
    cdef Block block
    cdef char* memory
    cdef int head
    if q.shape[1] != heads or q.shape[2] != g.key_dim:
        raise ValueError(f"q must be [N, {heads}, {g.key_dim}], got [{rows}, {q.shape[1]}, {q.shape[2]}]")
    if out.shape[0] != rows or out.shape[1] != heads or out.shape[2] != g.value_dim:
        raise ValueError(f"out must be [{rows}, {heads}, {g.value_dim}]")
    if lse.shape[0] != rows or lse.shape[1] != heads:
        raise ValueError(f"lse must be [{rows}, {heads}]")
    if rows == 0:
        return
    check_pages(&g, table, first, rows, True)
    cdef int block_rows = <int>min(<int64_t>BLOCK_ROWS, rows * g.group)
    memory = <char*>aligned_alloc(64, block_layout(&g, block_rows, NULL, &block))
    if memory == NULL:
        raise MemoryError("no memory for the kernel's working space")
    block_layout(&g, block_rows, memory, &block)
    with nogil:
        for head in range(g.kv_heads):
            attend_head(&g, <char*>base, &table[0], head, &q[0, 0, 0], first, rows, scale, &block,
                        &out[0, 0, 0], &lse[0, 0])
    free(memory)


def in_range(const float[::1] x, float limit):
    cdef bint fits = True
    if x.shape[0]:
        with nogil:
            fits = all_in_range(&x[0], x.shape[0], limit)
    return fits


cdef check_pages(Geometry* g, const int64_t[::1] table, int64_t first, int64_t count, bint before):
    cdef int64_t pages = g.capacity // PAGE_SLOTS
    cdef int64_t end = first + count - g.sinks
    cdef int64_t begin = 0 if before else max(<int64_t>0, first - g.sinks)
    cdef int64_t ring_page
    if first < 0 or count < 0:
        raise ValueError(f"positions must not be negative, got {first} and {count} tokens")
    if table.shape[0] != 1 + pages:
        raise ValueError(f"the page table must have {1 + pages} entries, got {table.shape[0]}")
    if g.sink_slots and (before or first < g.sinks) and table[0] < 0:
        raise ValueError("the sink page is not there")
    if end <= 0:
        return
    for ring_page in range(begin // PAGE_SLOTS, (end + PAGE_SLOTS - 1) // PAGE_SLOTS):
        if table[1 + ring_page % pages] < 0:
            raise ValueError(f"ring page {ring_page % pages} is not there")
        if ring_page - begin // PAGE_SLOTS > pages:
            break


cdef check_tokens(Geometry* g, const int64_t[::1] table, int64_t first,
                  const float[:, :, ::1] k, const float[:, :, ::1] v):
    if k.shape[1] != g.kv_heads or k.shape[2] != g.key_dim:
        raise ValueError(f"k must be [n, {g.kv_heads}, {g.key_dim}], got [{k.shape[0]}, {k.shape[1]}, {k.shape[2]}]")
    if v.shape[0] != k.shape[0] or v.shape[1] != g.kv_heads or v.shape[2] != g.value_dim:
        raise ValueError(
            f"v must be [{k.shape[0]}, {g.kv_heads}, {g.value_dim}], got [{v.shape[0]}, {v.shape[1]}, {v.shape[2]}]"
        )
    check_pages(g, table, first, k.shape[0], False)
