# A batch: attention of many items (one stream's layer with its query rows) in one job of the thread pool.
#
# A unit of work is (item, kv head, block of rows), with all its ranges of pages in order. When there are too
# few of those to keep the threads busy, a unit is one range of them: it leaves its partial, and the caller
# merges the partials in the same order. So how the work is cut changes no bit.

from rondel.decoder.kernels._pool cimport run_units, thread_count

cdef enum:
    UNITS_PER_THREAD = 4
    ALONE_BYTES = 196608    # less than this of stored data is not worth waking anybody

cdef struct Batch:
    Item* items
    int64_t count
    char* scratch           # one block's working space per thread
    int64_t scratch_bytes

# Adding zero turns a -0 that rounding may have left into +0, so that not even its sign tells anything
# about slots the row does not see.
cdef void write_rows(
    const Geometry* g, int rows, const Partial* total, int head, int64_t start, float* out, float* lse
) noexcept nogil:
    cdef int64_t flat, at
    cdef int r, c
    for r in range(rows):
        flat = start + r
        at = (flat // g.group) * g.kv_heads * g.group + head * g.group + flat % g.group
        if total.most[r] == -INFINITY:
            memset(out + at * g.value_dim, 0, 4 * g.value_dim)
            lse[at] = -INFINITY
            continue
        for c in range(g.value_dim):
            out[at * g.value_dim + c] = total.acc[r * g.value_pad + c] / total.sum[r] + <float>0.0
        lse[at] = <float>((<double>total.most[r]) * 0.6931471805599453 + log(total.sum[r]))


cdef inline int block_rows(const Item* item, int64_t block) noexcept nogil:
    return <int>min(<int64_t>BLOCK_ROWS, item.rows * item.g.group - block * BLOCK_ROWS)

cdef inline int64_t partial_floats(const Item* item) noexcept nogil:
    return 2 * whole_vectors(item.most_rows) + whole_vectors(item.most_rows * <int64_t>item.g.value_pad)

cdef inline Partial partial_at(Item* item, int64_t number) noexcept nogil:
    cdef Partial p
    p.most = item.partials + number * partial_floats(item)
    p.sum = p.most + whole_vectors(item.most_rows)
    p.acc = p.sum + whole_vectors(item.most_rows)
    return p

# Units of an item whose ranges are, or are not, split.
cdef inline int64_t unit_count(const Item* item, bint split) noexcept nogil:
    return item.g.kv_heads * item.blocks * (item.ranges if split else 1)

cdef void batch_unit(void* context, int64_t unit, int worker) noexcept nogil:
    cdef Batch* batch = <Batch*>context
    cdef Item* item = batch.items
    cdef Block b
    cdef Partial kept
    cdef int64_t low = 0, high = batch.count - 1, middle, number, head, block
    while low < high:
        middle = (low + high + 1) // 2
        if batch.items[middle].first_unit <= unit:
            low = middle
        else:
            high = middle - 1
    item = &batch.items[low]
    unit -= item.first_unit
    number = 0
    if item.partials != NULL:
        number = unit % item.ranges
        unit = unit // item.ranges
    block = unit % item.blocks
    head = unit // item.blocks
    b.rows = block_rows(item, block)
    block_layout(&item.g, item.most_rows, batch.scratch + worker * batch.scratch_bytes, &b)
    b.head, b.start = <int>head, block * BLOCK_ROWS
    load_queries(item, &b, item.q)
    product_begin(&b.product)
    if item.partials != NULL:
        kept = partial_at(item, (head * item.blocks + block) * item.ranges + number)
        b.page_range = kept
        attend_range(item, number, &b)
        product_end(&b.product)
        return
    clear_partial(&item.g, b.rows, &b.total)
    for number in range(item.ranges):
        attend_range(item, number, &b)
        merge_range(&item.g, b.rows, &b.page_range, &b.total)
    product_end(&b.product)
    write_rows(&item.g, b.rows, &b.total, <int>head, block * BLOCK_ROWS, item.out, item.lse)

# Into the first range's partial, range by range: where the unsplit way starts from nothing, a first partial
# is copied, which is the same bits.
cdef void merge_split(Item* item) noexcept nogil:
    cdef int64_t head, block, number, at
    cdef Partial total, new
    for head in range(item.g.kv_heads):
        for block in range(item.blocks):
            at = (head * item.blocks + block) * item.ranges
            total = partial_at(item, at)
            for number in range(1, item.ranges):
                new = partial_at(item, at + number)
                merge_range(&item.g, block_rows(item, block), &new, &total)
            write_rows(&item.g, block_rows(item, block), &total, <int>head, block * BLOCK_ROWS,
                       item.out, item.lse)
