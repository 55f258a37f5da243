# Attention of a block of rows over one kv head's ring: softmax(q·Kᵀ·scale) V by the online softmax
# (arXiv 1805.02867), page by page, no N×M matrix.
#
# Loop order: kv head → block of rows → range of pages → page → (scores, weights, weighted sums). A page's
# run for one kv head is contiguous and is read once for the whole block, that is for all query heads of the
# group and up to BLOCK_ROWS product rows. A product row is one (query row, head of the group).
#
# Why a row's bits depend on nothing else: integer sums are exact, float work is done per row in slot
# order, pages are merged within fixed ranges of RANGE_PAGES ring pages and the ranges then merged in order
# (a range of one thread or of another machine would give the same partial). Empty parts are skipped.

cdef extern from "math.h" nogil:
    double log(double)

# The page's sums join the range's state. A page where a row sees nothing changes none of its bits: factors 1
# and 0, and its sums are not touched. (The finite stand-in for -inf keeps NaN out of the differences.)
cdef void merge_page(
    const Geometry* g, Page* page, const char* values, int start, int end, Block* b
) noexcept nogil:
    cdef Partial* state = &b.page_range
    cdef vf most, page_most, apart, old_factor, new_factor, value, unit
    cdef vf zero = vf_set(0.0), fine_unit = vf_set(<float>1.0 / FINE_UNITS), nothing = vf_set(<float>-3e38)
    cdef float* acc
    cdef int64_t offset
    cdef int r, c
    for r from 0 <= r < b.rows by LANES:
        most = vf_max(vf_load(state.most + r), nothing)
        page_most = vf_max(vf_load(b.page_most + r), nothing)
        apart = vf_sub(most, page_most)
        old_factor = vf_exp2(vf_min(apart, zero))
        new_factor = vf_exp2(vf_min(vf_sub(page_most, most), zero))
        vf_store(b.old_factor + r, old_factor)
        vf_store(b.new_factor + r, vf_mul(new_factor, vf_load(b.page_unit + r)))
        vf_store(state.sum + r, vf_fma(vf_load(b.page_sum + r), new_factor, vf_mul(vf_load(state.sum + r), old_factor)))
        vf_store(state.most + r, vf_max(vf_load(state.most + r), vf_load(b.page_most + r)))
    for r in range(b.rows):
        if b.page_most[r] == -INFINITY:
            continue
        if r % AWAKE_ROWS == AWAKE_ROWS - 1:
            product_awake(&b.product)
        if b.fine[r]:
            weigh_remainders(b.scores + r * PAGE_SLOTS, start, end, <int8_t*>b.fine_weights)
            sum_page(g, page.slots, values, start, end, &b.ahead, b.fine_weights, 1, b.fine_sums, &b.product)
        offset = <int64_t>r * g.value_pad
        acc = state.acc + offset
        if g.storage == STORE_INT8 and not b.fine[r]:
            merge_sums(<int32_t*>b.sums + offset, b.new_factor[r], b.old_factor[r], acc, g.value_pad, &b.ahead)
            continue
        old_factor = vf_set(b.old_factor[r])
        unit = vf_set(b.new_factor[r])
        for c from 0 <= c < g.value_pad by LANES:
            ahead_step(&b.ahead, VECTOR_TICKS)
            if g.storage == STORE_FLOAT32:
                value = vf_load(<float*>b.sums + offset + c)
            else:
                value = vf_from_i32(<int32_t*>b.sums + offset + c)
            if b.fine[r]:
                value = vf_fma(vf_from_i32(b.fine_sums + c), fine_unit, value)
            vf_store(acc + c, vf_fma(value, unit, vf_mul(vf_load(acc + c), old_factor)))

# next_run: what will be read after this page.
cdef void attend_page(const Item* item, Page* page, Block* b, const char* next_run) noexcept nogil:
    cdef const Geometry* g = &item.g
    cdef int start = PAGE_SLOTS, end = 0
    cdef const char* run = page.at + b.head * page.run
    cdef const char* values = run + key_bytes(g, page.slots)
    cdef bint whole_numbers = g.storage == STORE_INT8
    cdef int r
    for r in range(b.rows):
        if b.lo[r] < b.hi[r]:
            start = min(start, b.lo[r])
            end = max(end, b.hi[r])
    if start >= end:
        return
    start = start & ~15
    end = (end + 15) & ~15
    ahead_begin(&b.ahead, next_run, page.run, page_ticks(
        whole_numbers, b.rows, key_bytes(g, page.slots) + value_bytes(g, page.slots), page.slots, g.value_pad))
    if g.centring:
        centre_queries(g, b, centre_at(g, page, b.head), item.scale * <float>1.4426950408889634)
    score_page(g, run, start, end, &b.ahead, b.queries, b.rows, <void*>b.products if whole_numbers else b.scores,
               &b.product)
    if whole_numbers:
        weigh_i8(g, page, run, start, end, b)
    else:
        weigh_f32(g, start, end, b)
    sum_page(g, page.slots, values, start, end, &b.ahead, <void*>b.weights if whole_numbers else b.scores, b.rows,
             b.sums, &b.product)
    merge_page(g, page, values, start, end, b)

# Adds the partial of a range to what the ranges before it gave. Empty ones change no bit.
cdef void merge_range(const Geometry* g, int rows, const Partial* new, Partial* total) noexcept nogil:
    cdef float old_factor = 1.0, new_factor = 1.0
    cdef vf before, after
    cdef int64_t offset
    cdef int r, c
    for r in range(rows):
        if new.most[r] == -INFINITY:
            continue
        offset = <int64_t>r * g.value_pad
        if total.most[r] == -INFINITY:
            total.most[r] = new.most[r]
            total.sum[r] = new.sum[r]
            memcpy(total.acc + offset, new.acc + offset, 4 * g.value_pad)
            continue
        merge_factors(total.most[r], new.most[r], &old_factor, &new_factor)
        total.most[r] = max(total.most[r], new.most[r])
        total.sum[r] = total.sum[r] * old_factor + new.sum[r] * new_factor
        before = vf_set(old_factor)
        after = vf_set(new_factor)
        for c from 0 <= c < g.value_pad by LANES:
            vf_store(
                total.acc + offset + c,
                vf_fma(vf_load(new.acc + offset + c), after, vf_mul(vf_load(total.acc + offset + c), before)),
            )

# One beyond the last position that a row at `position` sees.
cdef inline int64_t sight_end(const Item* item, int64_t position) noexcept nogil:
    return min(item.held, position + item.right + 1)

# How many ranges of pages the rows may see; at least one.
cdef inline int64_t range_count(const Item* item) noexcept nogil:
    cdef int64_t end = sight_end(item, item.first + (item.rows - 1) * item.row_step)
    cdef int64_t slots = min(item.g.capacity, end - item.g.sinks)
    return max(<int64_t>1, (slots + RANGE_PAGES * PAGE_SLOTS - 1) // (RANGE_PAGES * PAGE_SLOTS))

# What is done to the scores of each row on the page at hand. A bias of zeros is none, to the bit: what rows beside
# it have must not change a row. One from which a bias hides all that it would see of the page sees nothing of it.
cdef void see_edits(const Item* item, Block* b) noexcept nogil:
    cdef bint always = item.softcap > 0 or item.slopes != NULL
    cdef const float* bias
    cdef int r, t, hidden
    for r in range(b.rows):
        b.edited[r] = always
        b.hides[r] = False
        if item.bias == NULL:
            continue
        bias = row_bias(item, b, r)
        hidden = 0
        for t in range(b.lo[r], b.hi[r]):
            hidden += bias[t] == -INFINITY
            b.edited[r] |= bias[t] != 0
        b.hides[r] = hidden > 0
        if hidden == b.hi[r] - b.lo[r]:
            b.lo[r] = b.hi[r] = 0

# What the block's rows see of the sink page, and of a ring page.
cdef void see_sinks(const Item* item, Block* b) noexcept nogil:
    cdef int r
    for r in range(b.rows):
        b.lo[r] = 0
        b.hi[r] = <int>max(<int64_t>0, min(item.g.sinks, sight_end(item, b.position[r])))
        b.origin[r] = 0

cdef void see_ring_page(const Item* item, Block* b, int64_t ring_page) noexcept nogil:
    cdef const Geometry* g = &item.g
    cdef int64_t start, end
    cdef int r
    for r in range(b.rows):
        if r and b.position[r] == b.position[r - 1]:
            b.lo[r], b.hi[r], b.origin[r] = b.lo[r - 1], b.hi[r - 1], b.origin[r - 1]
            continue
        start = b.position[r] + 1 - g.sinks - g.window
        end = sight_end(item, b.position[r]) - g.sinks
        visible_slots(g, start, end, ring_page, &b.lo[r], &b.hi[r], &b.origin[r])
        b.origin[r] += g.sinks

cdef inline int64_t ring_pages_seen(const Item* item, const Block* b) noexcept nogil:
    cdef int64_t slots = min(item.g.capacity, sight_end(item, b.position[b.rows - 1]) - item.g.sinks)
    return (slots + PAGE_SLOTS - 1) // PAGE_SLOTS

# The block over the sink page, which q_sinks scores if there is one.
cdef void attend_sinks(const Item* item, Block* b) noexcept nogil:
    cdef const Geometry* g = &item.g
    cdef Page page = page_at(g, item.base, item.table, 0)
    b.sink_page = True
    see_sinks(item, b)
    see_edits(item, b)
    if item.q_sinks != NULL:
        load_queries(item, b, item.q_sinks)
    attend_page(item, &page, b, page.at + b.head * page.run)
    if item.q_sinks != NULL:
        load_queries(item, b, item.q)
    b.sink_page = False

# The block over one range of ring pages; the first range begins with the sink page. Result in b.page_range.
cdef void attend_range(const Item* item, int64_t number, Block* b) noexcept nogil:
    cdef const Geometry* g = &item.g
    cdef int64_t ring_pages = ring_pages_seen(item, b)
    cdef int64_t ring_page
    cdef Page page, following
    # Where this thread most likely goes on after the last page.
    cdef int next_head = b.head
    if b.start + b.rows == item.rows * g.group and b.head + 1 < g.kv_heads:
        next_head = b.head + 1
    b.item = item
    b.sink_page = False
    clear_partial(g, b.rows, &b.page_range)
    if number == 0 and g.sink_slots:
        attend_sinks(item, b)
    for ring_page in range(number * RANGE_PAGES, min(ring_pages, (number + 1) * RANGE_PAGES)):
        page = page_at(g, item.base, item.table, 1 + ring_page)
        see_ring_page(item, b, ring_page)
        see_edits(item, b)
        following = page_at(g, item.base, item.table, 1 + (ring_page + 1) % ring_pages)
        attend_page(item, &page, b, following.at + (next_head if ring_page + 1 == ring_pages else b.head) * following.run)
