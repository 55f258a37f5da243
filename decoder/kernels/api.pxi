# The Python face of a tier: checks sizes once, releases the GIL, calls one kernel. The session has validated
# everything that a caller can get wrong; the checks here keep a mistake of ours from becoming a wild pointer.

from libc.stdlib cimport free, malloc

from rondel.decoder.errors import ForkedProcess

cdef extern from "stdlib.h" nogil:
    void* aligned_alloc(size_t alignment, size_t size)


def place(const int64_t[::1] words, uintptr_t base, const int64_t[::1] table, int64_t first,
          const float[:, :, ::1] k, const float[:, :, ::1] v):
    cdef Geometry g = geometry_from(words)
    check_tokens(&g, table, first, k, v)
    if k.shape[0]:
        with nogil:
            place_tokens(&g, <char*>base, &table[0], first, k.shape[0], &k[0, 0, 0], &v[0, 0, 0])


def damaged(const int64_t[::1] words, uintptr_t base, const int64_t[::1] table, int64_t first, int64_t count):
    cdef Geometry g = geometry_from(words)
    cdef int64_t found = -1
    check_pages(&g, table, first, count, False)
    if count:
        with nogil:
            found = first_damaged(&g, <char*>base, &table[0], first, count)
    return found


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


def attend(list queries):
    cdef int64_t count = len(queries)
    cdef int threads = thread_count()
    cdef int64_t units = 0, split_units = 0, stored = 0, split_floats = 0, i
    cdef Batch batch
    cdef bint split
    cdef int failed
    cdef char* memory
    cdef Item* items
    if count == 0:
        return
    items = <Item*>malloc(count * sizeof(Item))
    if items == NULL:
        raise MemoryError("no memory for a batch")
    try:
        batch.scratch_bytes = 0
        for i in range(count):
            fill_item(&items[i], queries[i])
            batch.scratch_bytes = max(batch.scratch_bytes, scratch_of(&items[i]))
            units += unit_count(&items[i], False)
            split_units += unit_count(&items[i], True)
            stored += item_bytes(&items[i])
        if stored < ALONE_BYTES:
            threads = 1
        split = threads > 1 and units < UNITS_PER_THREAD * threads and split_units > units
        if split:
            for i in range(count):
                split_floats += unit_count(&items[i], True) * partial_floats(&items[i])
        memory = <char*>aligned_alloc(64, threads * batch.scratch_bytes + (4 * split_floats + 63) // 64 * 64)
        if memory == NULL:
            raise MemoryError("no memory for the kernel's working space")
        batch.items = items
        batch.count = count
        batch.scratch = memory
        memory += threads * batch.scratch_bytes
        units = 0
        for i in range(count):
            items[i].first_unit = units
            items[i].partials = <float*>memory if split else NULL
            units += unit_count(&items[i], split)
            memory += 4 * unit_count(&items[i], split) * partial_floats(&items[i])
        with nogil:
            failed = run_batch(&batch, units, threads)
        free(batch.scratch)
    finally:
        free(items)
    if failed:
        raise ForkedProcess(
            "this process was forked from one whose kernel threads were running; it has none of them: "
            "start it anew (spawn), or set one thread before forking"
        )


cdef int run_batch(Batch* batch, int64_t units, int threads) noexcept nogil:
    cdef int64_t i
    if threads == 1:
        for i in range(units):
            batch_unit(batch, i, 0)
    elif run_units(batch_unit, batch, units, threads) != 0:
        return -1
    for i in range(batch.count):
        if batch.items[i].partials != NULL:
            merge_split(&batch.items[i])
    return 0


cdef int64_t scratch_of(const Item* item) noexcept nogil:
    cdef Block block
    return block_layout(&item.g, item.most_rows, NULL, &block)


# Stored bytes that the item reads, about.
cdef int64_t item_bytes(const Item* item) noexcept nogil:
    return min(item.g.capacity, item.first + item.rows) * item.g.ring_run // PAGE_SLOTS * item.g.kv_heads


# call: words, base, table, first, scale, q [N, Hq, Dk], out [N, Hq, Dv], lse [N, Hq], q_sinks [N, Hq, Dk] or
# None, sight (right, held, row step) or None, edits (softcap, slopes [Hq] or None, bias [Hq or 1, N or 1, M] or
# None, bias_first) or None. The tuple keeps the arrays alive. out and lse may be None where nothing is attended.
cdef fill_item(Item* item, tuple call):
    cdef const int64_t[::1] table = call[2]
    cdef const float[:, :, ::1] q = call[5]
    cdef float[:, :, ::1] out = call[6]
    cdef float[:, ::1] lse = call[7]
    cdef const float[:, :, ::1] q_sinks = call[8]
    cdef int64_t end
    cdef int heads
    item.g = geometry_from(call[0])
    item.base = <char*><uintptr_t>call[1]
    item.first = call[3]
    item.scale = call[4]
    item.rows = q.shape[0]
    item.right, item.held, item.row_step = (0, item.first + item.rows, 1) if call[9] is None else call[9]
    heads = item.g.kv_heads * item.g.group
    if q.shape[1] != heads or q.shape[2] != item.g.key_dim:
        raise ValueError(f"q must be [N, {heads}, {item.g.key_dim}], got [{q.shape[0]}, {q.shape[1]}, {q.shape[2]}]")
    if out is not None and (
        out.shape[0] != item.rows or out.shape[1] != heads or out.shape[2] != item.g.value_dim
    ):
        raise ValueError(f"out must be [{item.rows}, {heads}, {item.g.value_dim}]")
    if lse is not None and (lse.shape[0] != item.rows or lse.shape[1] != heads):
        raise ValueError(f"lse must be [{item.rows}, {heads}]")
    if q_sinks is not None and (
        q_sinks.shape[0] != item.rows or q_sinks.shape[1] != heads or q_sinks.shape[2] != item.g.key_dim
    ):
        raise ValueError(f"q_sinks must be [{item.rows}, {heads}, {item.g.key_dim}]")
    if not 0 <= item.right <= item.g.capacity or item.row_step not in (0, 1) or item.held < 0:
        raise ValueError(f"sight must be (right, held, 0 or 1), got {call[9]}")
    item.most_rows = <int>min(<int64_t>BLOCK_ROWS, item.rows * item.g.group)
    item.blocks = (item.rows * item.g.group + BLOCK_ROWS - 1) // BLOCK_ROWS
    item.ranges = range_count(item)
    item.partials = NULL
    item.q_sinks = NULL
    item.out = NULL
    item.lse = NULL
    end = sight_end(item, item.first + (item.rows - 1) * item.row_step)
    fill_edits(item, call[10], end)
    if item.rows:
        check_pages(&item.g, table, 0, max(<int64_t>0, end), True)
        item.table = &table[0]
        item.q = &q[0, 0, 0]
        if out is not None:
            item.out = &out[0, 0, 0]
        if lse is not None:
            item.lse = &lse[0, 0]
        if q_sinks is not None:
            item.q_sinks = &q_sinks[0, 0, 0]


# `end`: one beyond the last position that any row sees.
cdef fill_edits(Item* item, tuple edits, int64_t end):
    cdef const float[::1] slopes
    cdef const float[:, :, ::1] bias
    cdef int64_t heads = item.g.kv_heads * item.g.group
    cdef int64_t lowest = 0 if item.g.sinks else max(<int64_t>0, item.first + 1 - item.g.window)
    item.softcap = 0.0
    item.slopes = NULL
    item.bias = NULL
    if edits is None:
        return
    item.softcap, slopes, bias, item.bias_first = edits
    if slopes is not None:
        if slopes.shape[0] != heads:
            raise ValueError(f"slopes must be [{heads}], got [{slopes.shape[0]}]")
        item.slopes = &slopes[0]
    if bias is not None:
        if bias.shape[0] not in (1, heads) or bias.shape[1] not in (1, item.rows):
            raise ValueError(f"bias must be [{heads} or 1, {item.rows} or 1, M], got [{bias.shape[0]}, {bias.shape[1]}, M]")
        if item.bias_first > lowest or item.bias_first + bias.shape[2] < end:
            raise ValueError(
                f"bias must cover positions {lowest} to {end - 1}, got {item.bias_first} to "
                f"{item.bias_first + bias.shape[2] - 1}"
            )
        if bias.shape[2]:
            item.bias = &bias[0, 0, 0]
        item.bias_head = 0 if bias.shape[0] == 1 else bias.shape[1] * bias.shape[2]
        item.bias_row = 0 if bias.shape[1] == 1 else bias.shape[2]


def scores(tuple query, float[:, :, ::1] into, int64_t column_first):
    cdef Item item
    cdef char* memory
    fill_item(&item, query)
    if into.shape[0] != item.rows or into.shape[1] != item.g.kv_heads * item.g.group:
        raise ValueError(f"into must be [{item.rows}, {item.g.kv_heads * item.g.group}, columns]")
    if item.rows == 0 or into.shape[2] == 0:
        return
    memory = <char*>aligned_alloc(64, scratch_of(&item))
    if memory == NULL:
        raise MemoryError("no memory for the kernel's working space")
    with nogil:
        write_scores(&item, memory, &into[0, 0, 0], column_first, into.shape[2])
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
    if k.shape[0]:
        check_pages(g, table, first, k.shape[0], False)
