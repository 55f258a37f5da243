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

# Products of `rows` queries with one page's keys: [rows][PAGE_SLOTS], slots [start, end), multiples of 16.
# `ahead` has the extent of the page's keys.
cdef void score_page(
    const Geometry* g, const char* keys, int start, int end, const char* ahead,
    const char* queries, int rows, void* products, ProductState* state
) noexcept nogil:
    cdef int64_t tile = 16 * g.key_pad
    cdef int64_t skip = start // 16 * tile
    if g.storage == STORE_FLOAT32:
        product_f32(
            <const float*>keys + skip, tile, (end - start) // 16, g.key_pad, <const float*>ahead + skip,
            <const float*>queries, g.key_pad, <float*>products + start, PAGE_SLOTS, rows,
        )
    else:
        product_i8(
            <const int8_t*>keys + skip, tile, (end - start) // 16, g.key_pad, <const int8_t*>ahead + skip,
            <const int8_t*>queries, g.query_steps, <int32_t*>products + start, PAGE_SLOTS, rows, state,
        )

# Weighted sums of the page's values: [rows][Vp]. `ahead` has the extent of the page's values.
cdef void sum_page(
    const Geometry* g, int slots, const char* values, int start, int end, const char* ahead,
    const void* weights, int rows, void* sums, ProductState* state
) noexcept nogil:
    cdef int64_t tile = 16 * slots
    cdef int64_t skip = 16 * start
    if g.storage == STORE_FLOAT32:
        product_f32(
            <const float*>values + skip, tile, g.value_pad // 16, end - start, <const float*>ahead + skip,
            <const float*>weights + start, PAGE_SLOTS, <float*>sums, g.value_pad, rows,
        )
    else:
        product_i8(
            <const int8_t*>values + skip, tile, g.value_pad // 16, end - start, <const int8_t*>ahead + skip,
            <const int8_t*>weights + ROW_STEP_BYTES * start, PAGE_SLOTS, <int32_t*>sums, g.value_pad, rows, state,
        )

# scales: of the page's keys, then of its values. What depends on the visible slots alone is computed again
# only where these change from one row to the next: in decode all rows of a block see the same.
cdef void weigh_row_i8(
    Page* page, const uint16_t* scales, Block* b, int r, const int32_t* fine_products, int start, int end
) noexcept nogil:
    cdef float* scores = b.scores + r * PAGE_SLOTS
    if b.lo[r] != b.seen_lo or b.hi[r] != b.seen_hi:
        b.seen_lo, b.seen_hi = b.lo[r], b.hi[r]
        value_weights(scales + page.slots, b.lo[r], b.hi[r], start, end, b.values)
        b.largest_scale = largest_within(b.key_scales, b.lo[r], b.hi[r], start, end)
    b.page_unit[r] = b.values.largest / <float>ROW_LIMIT
    b.largest_key[r] = b.largest_scale
    if fine_products == NULL and b.hi[r] - b.lo[r] == PAGE_SLOTS:
        b.page_sum[r] = weigh_whole_page(
            b.products + r * PAGE_SLOTS, b.key_scales, b.row_scale[r], b.values,
            <int8_t*>b.weights + 2 * r * PAGE_SLOTS, &b.page_most[r], &b.ahead,
        )
        b.ahead.at += PAGE_SLOTS // LANES * b.ahead.bytes
        return
    b.page_most[r] = scores_i8(b.products + r * PAGE_SLOTS, fine_products, b.key_scales, b.row_scale[r],
                               b.lo[r], b.hi[r], start, end, scores)
    weights_i8(scores, b.page_most[r], b.values, start, end, <int8_t*>b.weights + 2 * r * PAGE_SLOTS,
               &b.exact_sum[r], &b.page_sum[r])

cdef void hide_row(const Geometry* g, Block* b, int r, int start, int end) noexcept nogil:
    cdef vi zero = vi_round(vf_set(0.0))
    cdef int t
    if g.storage == STORE_FLOAT32:
        memset(b.scores + r * PAGE_SLOTS + start, 0, 4 * (end - start))
    else:
        for t from start <= t < end by LANES:
            row_store(<int8_t*>b.weights + 2 * r * PAGE_SLOTS, PAGE_SLOTS, t, zero)
    b.page_most[r] = -INFINITY
    b.page_sum[r] = 0.0
    b.fine[r] = False

# Rows that need it get a second look at the page. Few keys carry the weight when the denominator so far, this
# page included and relative to its maximum, is below FEW_KEYS; that asks the range at hand only, whose pages
# come in a fixed order.
cdef void refine_page(
    const Geometry* g, Page* page, const char* run, const uint16_t* scales, int start, int end, Block* b
) noexcept nogil:
    cdef const Partial* state = &b.page_range
    cdef vf apart, sixty = vf_set(60.0)
    cdef int r, last
    for r from 0 <= r < b.rows by LANES:
        apart = vf_min(vf_sub(vf_load(state.most + r), vf_load(b.page_most + r)), sixty)
        vf_store(b.few + r, vf_fma(vf_load(state.sum + r), vf_exp2(apart), vf_load(b.page_sum + r)))
    r = 0
    while r < b.rows:
        last = r
        while last < b.rows and b.page_most[last] > -INFINITY:
            b.fine[last] = b.few[last] < FEW_KEYS
            if not b.fine[last] and not b.coarseness[last] * b.largest_key[last] > COARSEST_SCORE:
                break
            last += 1
        if last > r:
            score_page(g, run, start, end, run, b.fine_queries + 2 * <int64_t>r * g.query_steps, last - r,
                       b.fine_products + r * PAGE_SLOTS, &b.product)
        for r in range(r, last):
            weigh_row_i8(page, scales, b, r, b.fine_products + r * PAGE_SLOTS, start, end)
            if b.fine[r]:   # what rounding takes is given back, so the weights are the exact ones
                b.page_sum[r] = b.exact_sum[r]
        r = last + 1

cdef void weigh_page(const Geometry* g, Page* page, const char* run, int start, int end, Block* b) noexcept nogil:
    cdef const uint16_t* scales = <const uint16_t*>(run + key_bytes(g, page.slots) + value_bytes(g, page.slots))
    cdef int r, t
    cdef float* row
    if g.storage == STORE_INT8:
        b.seen_lo = b.seen_hi = 0
        for t from start <= t < end by LANES:
            vf_store(b.key_scales + t, vf_from_bf16(scales + t))
    for r in range(b.rows):
        if b.lo[r] >= b.hi[r]:
            hide_row(g, b, r, start, end)
            continue
        b.fine[r] = False
        if g.storage == STORE_INT8:
            weigh_row_i8(page, scales, b, r, NULL, start, end)
            if r % AWAKE_ROWS == AWAKE_ROWS - 1:
                product_awake(&b.product)
        else:
            row = b.scores + r * PAGE_SLOTS
            b.page_most[r] = scores_f32(row, b.row_scale[r], b.lo[r], b.hi[r], start, end)
            b.page_sum[r] = weights_f32(row, b.page_most[r], start, end)
            b.page_unit[r] = 1.0
    if g.storage == STORE_INT8:
        refine_page(g, page, run, scales, start, end, b)

# The page's sums join the range's state. A page where a row sees nothing changes none of its bits: factors 1
# and 0, and its sums are not touched. (The finite stand-in for -inf keeps NaN out of the differences.)
cdef void merge_page(
    const Geometry* g, Page* page, const char* values, int start, int end, Block* b, const char* next_run
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
        b.ahead.at = next_run + r * (g.value_pad // LANES) * b.ahead.bytes
        if b.fine[r]:
            weigh_remainders(b.scores + r * PAGE_SLOTS, start, end, <int8_t*>b.fine_weights)
            sum_page(g, page.slots, values, start, end, values, b.fine_weights, 1, b.fine_sums, &b.product)
        old_factor = vf_set(b.old_factor[r])
        unit = vf_set(b.new_factor[r])
        offset = <int64_t>r * g.value_pad
        acc = state.acc + offset
        for c from 0 <= c < g.value_pad by LANES:
            if g.storage == STORE_FLOAT32:
                value = vf_load(<float*>b.sums + offset + c)
            else:
                value = vf_from_i32(<int32_t*>b.sums + offset + c)
                if b.fine[r]:
                    value = vf_fma(vf_from_i32(b.fine_sums + c), fine_unit, value)
            fetch_step(&b.ahead, c // LANES)
            vf_store(acc + c, vf_fma(value, unit, vf_mul(vf_load(acc + c), old_factor)))

# next_run: what the block will read after this page, to be fetched while the values are summed.
cdef void attend_page(const Geometry* g, Page* page, Block* b, const char* next_run) noexcept nogil:
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
    score_page(g, run, start, end, values, b.queries, b.rows, <void*>b.products if whole_numbers else b.scores,
               &b.product)
    b.ahead.at, b.ahead.bytes = values, FETCH_LINES * LANES * 4
    weigh_page(g, page, run, start, end, b)
    b.ahead.at = next_run
    sum_page(g, page.slots, values, start, end, next_run, <void*>b.weights if whole_numbers else b.scores, b.rows,
             b.sums, &b.product)
    merge_page(g, page, values, start, end, b, next_run)

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

# How many ranges of pages the rows up to `position` may see; at least one.
cdef inline int64_t range_count(const Geometry* g, int64_t position) noexcept nogil:
    cdef int64_t slots = min(g.capacity, position + 1 - g.sinks)
    return max(<int64_t>1, (slots + RANGE_PAGES * PAGE_SLOTS - 1) // (RANGE_PAGES * PAGE_SLOTS))

# The block over the sink page, which q_sinks scores if there is one.
cdef void attend_sinks(const Item* item, Block* b) noexcept nogil:
    cdef const Geometry* g = &item.g
    cdef Page page = page_at(g, item.base, item.table, 0)
    cdef int r
    for r in range(b.rows):
        b.lo[r] = 0
        b.hi[r] = <int>min(g.sinks, b.position[r] + 1)
    if item.q_sinks != NULL:
        load_queries(g, b, item.q_sinks, item.first, item.scale)
    attend_page(g, &page, b, page.at + b.head * page.run)
    if item.q_sinks != NULL:
        load_queries(g, b, item.q, item.first, item.scale)

# The block over one range of ring pages; the first range begins with the sink page. Result in b.page_range.
cdef void attend_range(const Item* item, int64_t number, Block* b) noexcept nogil:
    cdef const Geometry* g = &item.g
    cdef int64_t slots = min(g.capacity, b.position[b.rows - 1] + 1 - g.sinks)
    cdef int64_t ring_pages = (slots + PAGE_SLOTS - 1) // PAGE_SLOTS
    cdef int64_t ring_page
    cdef Page page, following
    cdef int r
    clear_partial(g, b.rows, &b.page_range)
    if number == 0 and g.sink_slots:
        attend_sinks(item, b)
    for ring_page in range(number * RANGE_PAGES, min(ring_pages, (number + 1) * RANGE_PAGES)):
        page = page_at(g, item.base, item.table, 1 + ring_page)
        for r in range(b.rows):
            if r and b.position[r] == b.position[r - 1]:
                b.lo[r], b.hi[r] = b.lo[r - 1], b.hi[r - 1]
            else:
                visible_slots(g, b.position[r], ring_page, &b.lo[r], &b.hi[r])
        following = page_at(g, item.base, item.table, 1 + (ring_page + 1) % ring_pages)
        attend_page(g, &page, b, following.at + b.head * following.run)
