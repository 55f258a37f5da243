# From products to weights, for all rows of a block over one page.

# What depends on the visible slots alone is computed again only where these change from one row to the next:
# in decode all rows of a block see the same. scales: of the page's keys, then of its values.
cdef inline void scales_for(Page* page, const uint16_t* scales, Block* b, int r, int start, int end) noexcept nogil:
    if b.lo[r] != b.scales.lo or b.hi[r] != b.scales.hi:
        load_scales(scales, scales + page.slots, b.lo[r], b.hi[r], start, end, NULL, b.scales,
                    &b.ahead)

# Where a bias hides slots it must not matter what they hold: then the row counts as coarse.
cdef inline bint coarse(const Block* b, int r) noexcept nogil:
    if b.hides[r]:
        return b.largest_key[r] > 0
    return b.coarseness[r] * b.largest_key[r] > COARSEST_SCORE

cdef void hide_row(int storage, Block* b, int r, int start, int end) noexcept nogil:
    cdef vi zero = vi_round(vf_set(0.0))
    cdef int t
    if storage == STORE_FLOAT32:
        memset(b.scores + r * PAGE_SLOTS + start, 0, 4 * (end - start))
    else:
        for t from start <= t < end by LANES:
            row_store(<int8_t*>b.weights + 2 * r * PAGE_SLOTS, PAGE_SLOTS, t, zero)
    b.page_most[r] = -INFINITY
    b.page_sum[r] = 0.0
    b.fine[r] = False

# A row's bias, to be indexed by the slots of the page at hand that it sees.
cdef inline const float* row_bias(const Item* item, const Block* b, int r) noexcept nogil:
    cdef int64_t flat = b.start + r
    cdef int64_t head = b.head * item.g.group + flat % item.g.group
    return (item.bias + head * item.bias_head + flat // item.g.group * item.bias_row
            + (b.origin[r] - item.bias_first))

# Scores of one row over one page, in units of log2, -inf where hidden: softcap, then bias and ALiBi, whose distance
# to a sink counts from the row or from where the sinks seem to lie (S + W - 1), whichever is nearer. Returns the
# largest.
cdef float edit_scores(Block* b, int r, int start, int end, float* scores) noexcept nogil:
    cdef const Item* item = b.item
    cdef const Geometry* g = &item.g
    cdef int64_t head = b.head * g.group + (b.start + r) % g.group
    cdef int64_t stands = b.position[r]
    cdef vf ln2 = vf_set(<float>0.6931471805599453), log2e = vf_set(<float>1.4426950408889634)
    cdef vf most = vf_set(-INFINITY)
    cdef vf cap, inverse, s
    cdef int t
    if item.softcap > 0:
        cap = vf_mul(vf_set(item.softcap), log2e)
        inverse = vf_div(ln2, vf_set(item.softcap))
        for t from start <= t < end by LANES:
            s = vf_load(scores + t)
            s = vf_within(vf_mul(vf_tanh(vf_mul(s, inverse)), cap), t, b.lo[r], b.hi[r], s)
            vf_store(scores + t, s)
    memset(b.edit + start, 0, 4 * (end - start))
    if item.bias != NULL:
        memcpy(b.edit + b.lo[r], row_bias(item, b, r) + b.lo[r], 4 * (b.hi[r] - b.lo[r]))
    if item.slopes != NULL:
        if b.sink_page:
            stands = min(stands, g.sinks + g.window - 1)
        for t in range(b.lo[r], b.hi[r]):
            b.edit[t] += item.slopes[head] * <float>(b.origin[r] + t - stands)
    for t from start <= t < end by LANES:
        s = vf_fma(vf_load(b.edit + t), log2e, vf_load(scores + t))
        vf_store(scores + t, s)
        most = vf_max(most, s)
    return vf_hmax(most)

# One row: the short way where it sees the whole page and needs no more than its weights. `exact`: what rounding
# takes from the weights will be given back, so their sum must be the exact one.
cdef void weigh_row(Page* page, const uint16_t* scales, Block* b, int r, int start, int end, bint exact) noexcept nogil:
    cdef float* scores = b.scores + r * PAGE_SLOTS
    cdef int8_t* weights = <int8_t*>b.weights + 2 * r * PAGE_SLOTS
    cdef const int32_t* products = b.products + r * PAGE_SLOTS
    cdef const int32_t* fine_products = NULL
    cdef float exact_sum = 0.0
    if exact or coarse(b, r):
        fine_products = b.fine_products + r * PAGE_SLOTS
    scales_for(page, scales, b, r, start, end)
    b.page_unit[r] = b.scales.largest_value / <float>ROW_LIMIT
    b.fine[r] = exact
    if not b.edited[r] and not exact and b.hi[r] - b.lo[r] == PAGE_SLOTS:
        b.page_sum[r] = weigh_whole_page(products, fine_products, b.row_scale[r], b.offset[r], b.scales, weights,
                                         &b.page_most[r], &b.ahead)
        return
    b.page_most[r] = scores_i8(products, fine_products, b.scales, b.row_scale[r], b.offset[r], start, end, scores)
    if b.edited[r]:
        b.page_most[r] = edit_scores(b, r, start, end, scores)
        if b.page_most[r] == -INFINITY:
            hide_row(STORE_INT8, b, r, start, end)
            return
        load_scales(scales, scales + page.slots, b.lo[r], b.hi[r], start, end, scores, b.scales,
                    &b.ahead)
        b.page_unit[r] = b.scales.largest_value / <float>ROW_LIMIT
    weights_i8(scores, b.page_most[r], b.scales, start, end, weights, &exact_sum, &b.page_sum[r])
    if exact:
        b.page_sum[r] = exact_sum
    if b.edited[r]:         # the scales are this row's alone
        b.scales.lo = b.scales.hi = 0

# The second product with the keys for rows [first, last).
cdef inline void score_fine(
    const Geometry* g, const char* run, int start, int end, Block* b, int first, int last
) noexcept nogil:
    if first < last:
        score_page(g, run, start, end, &b.ahead, b.fine_queries + 2 * <int64_t>first * g.query_steps, last - first,
                   b.fine_products + first * PAGE_SLOTS, &b.product)

# Few keys carry a row's weight when the denominator so far, this page included and relative to its maximum, is
# below FEW_KEYS; that asks the range at hand only, whose pages come in a fixed order. Such rows are weighed
# again, exactly.
cdef void weigh_few(
    const Geometry* g, Page* page, const char* run, const uint16_t* scales, int start, int end, Block* b
) noexcept nogil:
    cdef const Partial* state = &b.page_range
    cdef vf apart, sixty = vf_set(60.0)
    cdef int r
    for r from 0 <= r < b.rows by LANES:
        apart = vf_min(vf_sub(vf_load(state.most + r), vf_load(b.page_most + r)), sixty)
        vf_store(b.few + r, vf_fma(vf_load(state.sum + r), vf_exp2(apart), vf_load(b.page_sum + r)))
    for r in range(b.rows):
        if b.few[r] < FEW_KEYS and b.page_most[r] > -INFINITY:
            if not coarse(b, r):
                score_fine(g, run, start, end, b, r, r + 1)
            weigh_row(page, scales, b, r, start, end, True)

cdef void weigh_i8(const Geometry* g, Page* page, const char* run, int start, int end, Block* b) noexcept nogil:
    cdef const uint16_t* scales = <const uint16_t*>(run + key_bytes(g, page.slots) + value_bytes(g, page.slots))
    cdef int r, first = 0
    b.scales.lo = b.scales.hi = 0
    for r in range(b.rows):
        b.largest_key[r] = 0.0
        if b.lo[r] < b.hi[r]:
            scales_for(page, scales, b, r, start, end)
            b.largest_key[r] = b.scales.largest_key
        if not coarse(b, r):
            score_fine(g, run, start, end, b, first, r)
            first = r + 1
    score_fine(g, run, start, end, b, first, b.rows)
    for r in range(b.rows):
        if b.lo[r] >= b.hi[r]:
            hide_row(g.storage, b, r, start, end)
            continue
        weigh_row(page, scales, b, r, start, end, False)
        if r % AWAKE_ROWS == AWAKE_ROWS - 1:
            product_awake(&b.product)
    weigh_few(g, page, run, scales, start, end, b)

cdef void weigh_f32(const Geometry* g, int start, int end, Block* b) noexcept nogil:
    cdef float* row
    cdef int r
    for r in range(b.rows):
        if b.lo[r] >= b.hi[r]:
            hide_row(g.storage, b, r, start, end)
            continue
        row = b.scores + r * PAGE_SLOTS
        b.page_most[r] = scores_f32(row, b.row_scale[r], b.lo[r], b.hi[r], start, end)
        if b.edited[r]:
            b.page_most[r] = edit_scores(b, r, start, end, row)
            if b.page_most[r] == -INFINITY:
                hide_row(STORE_FLOAT32, b, r, start, end)
                continue
        b.page_sum[r] = weights_f32(row, b.page_most[r], start, end)
        b.page_unit[r] = 1.0
        b.fine[r] = False
