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

cdef extern from "tiles.h":
    void product_i8(
        const int8_t*, int64_t, int, int, const int8_t*, const int16_t*, int64_t, int32_t*, int64_t, int
    ) noexcept nogil
    void product_f32(
        const float*, int64_t, int, int, const float*, const float*, int64_t, float*, int64_t, int
    ) noexcept nogil

cdef extern from "math.h" nogil:
    double log(double)
    float sqrtf(float)

# Scores of `rows` queries over one page: [rows][PAGE_SLOTS], slots [start, end), multiples of 16. `ahead` has
# the extent of the page's keys.
cdef void score_page(
    const Geometry* g, const char* keys, int start, int end, const char* ahead,
    const void* queries, int rows, void* scores
) noexcept nogil:
    cdef int64_t tile = 16 * g.key_pad
    cdef int64_t skip = start // 16 * tile
    if g.storage == STORE_FLOAT32:
        product_f32(
            <const float*>keys + skip, tile, (end - start) // 16, g.key_pad, <const float*>ahead + skip,
            <const float*>queries, g.key_pad, <float*>scores + start, PAGE_SLOTS, rows,
        )
    else:
        product_i8(
            <const int8_t*>keys + skip, tile, (end - start) // 16, g.key_pad // 2, <const int8_t*>ahead + skip,
            <const int16_t*>queries, g.key_pad, <int32_t*>scores + start, PAGE_SLOTS, rows,
        )

# Whether the denominator so far, this page included and relative to its maximum, is below FEW_KEYS. It asks
# the range at hand only, whose pages come in a fixed order.
cdef inline bint few_keys(const Partial* state, int r, const PagePart* part) noexcept nogil:
    if not 0 < part.sum < FEW_KEYS:
        return False
    return part.sum + state.sum[r] * exp2_one(min(state.most[r] - part.most, <float>60.0)) < FEW_KEYS

cdef void weigh_page(const Geometry* g, Page* page, const char* run, int start, int end, Block* b) noexcept nogil:
    cdef const uint16_t* scales
    cdef float largest = 0.0, coarsest = 0.0
    cdef int known_lo = -1, known_hi = -1
    cdef int r, t
    if g.storage == STORE_FLOAT32:
        for r in range(b.rows):
            weigh_f32(<float*>b.scores + r * PAGE_SLOTS, b.row_scale[r], b.lo[r], b.hi[r], start, end,
                      &b.parts[r])
        return
    scales = <const uint16_t*>(run + key_bytes(g, page.slots) + value_bytes(g, page.slots))
    for t from start <= t < end by LANES:
        vf_store(b.key_scales + t, vf_from_bf16(scales + t))
    for r in range(b.rows):
        if b.lo[r] >= b.hi[r]:
            hide_row(start, end, b.weights + r * PAGE_SLOTS, &b.parts[r])
            continue
        if b.lo[r] != known_lo or b.hi[r] != known_hi:
            known_lo, known_hi = b.lo[r], b.hi[r]
            largest = value_weights(scales + page.slots, known_lo, known_hi, start, end, b.value_weight)
            coarsest = largest_within(b.key_scales, known_lo, known_hi, start, end) * sqrtf(<float>g.key_dim)
        b.parts[r].unit = largest / <float>WEIGHT_UNITS
        weigh_i8(
            <int32_t*>b.scores + r * PAGE_SLOTS, NULL, b.key_scales, b.value_weight, b.row_scale[r],
            b.lo[r], b.hi[r], start, end,
            b.exact + r * PAGE_SLOTS, b.weights + r * PAGE_SLOTS, &b.parts[r],
        )
        b.parts[r].fine = few_keys(&b.page_range, r, &b.parts[r])
        if not b.parts[r].fine and not scores_too_coarse(b.row_scale[r] * coarsest):
            continue
        score_page(g, run, start, end, run, b.fine_queries + r * g.key_pad, 1, b.fine_scores)
        weigh_i8(
            <int32_t*>b.scores + r * PAGE_SLOTS, b.fine_scores, b.key_scales, b.value_weight, b.row_scale[r],
            b.lo[r], b.hi[r], start, end,
            b.exact + r * PAGE_SLOTS, b.weights + r * PAGE_SLOTS, &b.parts[r],
        )

# Weighted sums of the page's values: [rows][Vp]. `ahead` has the extent of the page's values.
cdef void sum_page(
    const Geometry* g, int slots, const char* values, int start, int end, const char* ahead,
    const void* weights, int rows, void* sums
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
            <const int8_t*>values + skip, tile, g.value_pad // 16, (end - start) // 2,
            <const int8_t*>ahead + skip, <const int16_t*>weights + start, PAGE_SLOTS,
            <int32_t*>sums, g.value_pad, rows,
        )

cdef void merge_page(const Geometry* g, Page* page, const char* values, int start, int end, Block* b) noexcept nogil:
    cdef Partial* state = &b.page_range
    cdef PagePart* part
    cdef float old_factor = 1.0, new_factor = 1.0
    cdef vf value, before, unit, fine_unit = vf_set(<float>1.0 / FINE_UNITS)
    cdef int64_t offset
    cdef int r, c
    for r in range(b.rows):
        part = &b.parts[r]
        if part.most == -INFINITY:
            continue
        if part.fine:
            weigh_remainders(b.exact + r * PAGE_SLOTS, start, end, b.fine)
            sum_page(g, page.slots, values, start, end, values, b.fine, 1, b.fine_sums)
        merge_factors(state.most[r], part.most, &old_factor, &new_factor)
        state.most[r] = max(state.most[r], part.most)
        state.sum[r] = state.sum[r] * old_factor + part.sum * new_factor
        before = vf_set(old_factor)
        unit = vf_set(new_factor * part.unit)
        for c from 0 <= c < g.value_pad by LANES:
            offset = <int64_t>r * g.value_pad + c
            if g.storage == STORE_FLOAT32:
                value = vf_load(<float*>b.sums + offset)
            else:
                value = vf_from_i32(<int32_t*>b.sums + offset)
                if part.fine:
                    value = vf_fma(vf_from_i32(b.fine_sums + c), fine_unit, value)
            vf_store(state.acc + offset, vf_fma(value, unit, vf_mul(vf_load(state.acc + offset), before)))

# next_run: what the block will read after this page, to be fetched while the values are summed.
cdef void attend_page(const Geometry* g, Page* page, int head, Block* b, const char* next_run) noexcept nogil:
    cdef int start = PAGE_SLOTS, end = 0
    cdef const char* run = page.at + head * page.run
    cdef int r
    for r in range(b.rows):
        if b.lo[r] < b.hi[r]:
            start = min(start, b.lo[r])
            end = max(end, b.hi[r])
    if start >= end:
        return
    start = start & ~15
    end = (end + 15) & ~15
    score_page(g, run, start, end, run + key_bytes(g, page.slots), b.queries, b.rows, b.scores)
    weigh_page(g, page, run, start, end, b)
    run = run + key_bytes(g, page.slots)
    sum_page(g, page.slots, run, start, end, next_run,
             b.scores if g.storage == STORE_FLOAT32 else <void*>b.weights, b.rows, b.sums)
    merge_page(g, page, run, start, end, b)

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

# The block over one range of ring pages; the first range begins with the sink page. Result in b.page_range.
cdef void attend_range(
    const Geometry* g, char* base, const int64_t* table, int head, int64_t number, Block* b
) noexcept nogil:
    cdef int64_t slots = min(g.capacity, b.position[b.rows - 1] + 1 - g.sinks)
    cdef int64_t ring_pages = (slots + PAGE_SLOTS - 1) // PAGE_SLOTS
    cdef int64_t ring_page
    cdef Page page, following
    cdef int r
    clear_partial(g, b.rows, &b.page_range)
    if number == 0 and g.sink_slots:
        page = page_at(g, base, table, 0)
        for r in range(b.rows):
            b.lo[r] = 0
            b.hi[r] = <int>min(g.sinks, b.position[r] + 1)
        attend_page(g, &page, head, b, page.at + head * page.run)
    for ring_page in range(number * RANGE_PAGES, min(ring_pages, (number + 1) * RANGE_PAGES)):
        page = page_at(g, base, table, 1 + ring_page)
        for r in range(b.rows):
            visible_slots(g, b.position[r], ring_page, &b.lo[r], &b.hi[r])
        following = page_at(g, base, table, 1 + (ring_page + 1) % ring_pages)
        attend_page(g, &page, head, b, following.at + head * following.run)
