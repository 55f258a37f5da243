# From the products of one row with one page to its weights, relative to the page's own maximum. Everything
# a page yields depends on that page alone; pages are merged afterwards (attend.pxi), in a fixed order.
#
# int8 pages: weight · value scale is rounded to int16 (ROW_LIMIT = the largest visible value scale), so the
# product with the value codes is exact. Rounding costs at most 128 halves of a unit (2^-9 of the largest
# value), typically 2^-15 and less when many keys share the weight. The scores come from an int16 query in the
# same way. The denominator is summed from the rounded weights, so that the output is a convex combination,
# for keys whose value scale is at least half of the largest, and from the unrounded ones for the others: a
# value row of all zeros cannot distort it, whatever its scale.
#
# When few keys carry the weight (one score far above others that all round to zero is the extreme), that
# is not good enough: then what rounding took from the weights, and from the query, is multiplied in second
# passes over the same page, some 2^14 times finer (few_keys in attend.pxi). A query whose remainders could
# add up to too much gets a finer one in any case (COARSEST_SCORE).
#
# Rejected: weights relative to the running maximum (a row's bits would depend on the order of pages);
# summing the denominator from rounded weights alone (wrong by any factor for a row with tiny values).

cdef extern from "math.h":
    float INFINITY

cdef enum:
    FINE_UNITS = 16384
    FEW_KEYS = 12
    AWAKE_ROWS = 3          # rows between two reminders to the matrix unit

# How far off a score may be for its query having been rounded, in units of log2: what the error bound of the
# output, 2^-9 of the largest value, can bear beside the rounding of the weights.
cdef float COARSEST_SCORE = <float>0.0024

cdef extern from "softmax.h":
    enum:
        QUERY_FINE_UNITS
    ctypedef struct PageScales:
        int lo
        int hi
        float* key
        float* units
        float* back
        float* own
        float largest_key
        float largest_value
        bint mixed
    void load_scales(
        const uint16_t*, const uint16_t*, int, int, int, int, const float*, PageScales*, Ahead*
    ) noexcept nogil
    float weigh_whole_page(
        const int32_t*, const int32_t*, float, float, const PageScales*, int8_t*, float*, Ahead*
    ) noexcept nogil
    void merge_sums(const int32_t*, float, float, float*, int, Ahead*) noexcept nogil

# products (and fine_products, or NULL) [slots] int32 → scores [slots] in units of log2,
# -inf where not visible. Only slots [start, end), multiples of 16, are touched; visible are [lo, hi). Returns
# the largest score.
cdef float scores_i8(
    const int32_t* products, const int32_t* fine_products, const PageScales* scales, float row_scale,
    float offset, int start, int end, float* scores
) noexcept nogil:
    cdef vf hidden = vf_set(-INFINITY)
    cdef vf most = hidden
    cdef vf scale = vf_set(row_scale), shift = vf_set(offset)
    cdef vf fine_unit = vf_set(<float>1.0 / <float>QUERY_FINE_UNITS)
    cdef vf s
    cdef int t
    for t from start <= t < end by LANES:
        s = vf_from_i32(products + t)
        if fine_products != NULL:
            s = vf_fma(vf_from_i32(fine_products + t), fine_unit, s)
        s = vf_fma(vf_mul(s, vf_load(scales.key + t)), scale, shift)
        s = vf_within(s, t, scales.lo, scales.hi, hidden)
        vf_store(scores + t, s)
        most = vf_max(most, s)
    return vf_hmax(most)

# scores [slots] → in place the unrounded weight in units; rounded, the row `weights` of PAGE_SLOTS. The sums
# of 2^(score - most): as they are, and as far as possible of what the rounded weights are.
cdef void weights_i8(
    float* scores, float most, const PageScales* w, int start, int end, int8_t* weights,
    float* exact_sum, float* rounded_sum
) noexcept nogil:
    cdef vf top = vf_set(most)
    cdef vf exact = vf_set(0.0), rounded = vf_set(0.0)
    cdef vf e, units
    cdef vi whole
    cdef int t
    for t from start <= t < end by LANES:
        e = vf_exp2(vf_sub(vf_load(scores + t), top))
        units = vf_mul(e, vf_load(w.units + t))
        whole = vi_round(units)
        exact = vf_add(exact, e)
        rounded = vf_fma(vf_from_vi(whole), vf_load(w.back + t), vf_fma(e, vf_load(w.own + t), rounded))
        vf_store(scores + t, units)
        row_store(weights, PAGE_SLOTS, t, whole)
    exact_sum[0] = vf_hsum(exact)
    rounded_sum[0] = vf_hsum(rounded)

# What weights_i8 rounded off, in units of 1/FINE_UNITS: exact [slots] as it left them → a row of PAGE_SLOTS.
cdef void weigh_remainders(const float* exact, int start, int end, int8_t* fine) noexcept nogil:
    cdef vf units = vf_set(FINE_UNITS)
    cdef vf e
    cdef int t
    for t from start <= t < end by LANES:
        e = vf_load(exact + t)
        row_store(fine, PAGE_SLOTS, t, vi_round(vf_mul(vf_sub(e, vf_from_vi(vi_round(e))), units)))

# products [slots] float32 become scores in place, in units of log2; as scores_i8.
cdef float scores_f32(float* products, float row_scale, int lo, int hi, int start, int end) noexcept nogil:
    cdef vf hidden = vf_set(-INFINITY)
    cdef vf most = hidden
    cdef vf scale = vf_set(row_scale)
    cdef vf s
    cdef int t
    for t from start <= t < end by LANES:
        s = vf_within(vf_mul(vf_load(products + t), scale), t, lo, hi, hidden)
        vf_store(products + t, s)
        most = vf_max(most, s)
    return vf_hmax(most)

# scores [slots] float32 become the weights in place; returns their sum.
cdef float weights_f32(float* scores, float most, int start, int end) noexcept nogil:
    cdef vf top = vf_set(most)
    cdef vf total = vf_set(0.0)
    cdef vf run, e
    cdef int t, tile
    # Summed in runs, as the products are: a long chain of equal addends would round in one direction.
    for tile in range(start // 16, end // 16):
        run = vf_set(0.0)
        for t from 16 * tile <= t < 16 * (tile + 1) by LANES:
            e = vf_exp2(vf_sub(vf_load(scores + t), top))
            vf_store(scores + t, e)
            run = vf_add(run, e)
        total = vf_add(total, run)
    return vf_hsum(total)
