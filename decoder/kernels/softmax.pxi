# From the scores of one row over one page to its weights, relative to the page's own maximum. Everything a
# page yields depends on that page alone; pages are merged afterwards (attend.pxi), in a fixed order.
#
# int8 pages: weight · value scale is rounded to int16 (32,767 = the largest visible value scale), so the
# product with the value codes is exact. The denominator is summed from the unrounded weights: a value row
# of all zeros then cannot distort it, whatever its scale. Rounding costs at most 128 halves of a unit (2^-9
# of the largest value), typically 2^-15 and less when many keys share the weight. The scores come from an
# int16 query in the same way.
#
# When few keys carry the weight (one score far above others that all round to zero is the extreme), that
# is not good enough: then what rounding took from the weights, and from the query, is multiplied in second
# passes over the same page, some 2^14 times finer (few_keys in attend.pxi). Large scores need a finer query
# in any case (scores_too_coarse).
#
# Rejected: weights relative to the running maximum (a row's bits would depend on the order of pages);
# summing the denominator from rounded weight · scale (wrong by any factor for a row with tiny values).

cdef extern from "math.h" nogil:
    float INFINITY

cdef enum:
    WEIGHT_UNITS = 32767
    FINE_UNITS = 16384
    QUERY_FINE_UNITS = 32768
    FEW_KEYS = 12

# What one page gave one row.
cdef struct PagePart:
    float most          # maximum score, in units of log2; -inf = nothing visible
    float sum           # Σ 2^(score - most)
    float unit          # the value of one unit of the weighted sums
    bint fine           # few keys carry the weight: remainders get their own pass

# Value scales of the visible slots as multiples of weight units, zero elsewhere. Returns the largest scale.
cdef float value_weights(const uint16_t* scales, int lo, int hi, int start, int end, float* out) noexcept nogil:
    cdef vf zero = vf_set(0.0)
    cdef vf largest = zero
    cdef vf units, scale
    cdef float most
    cdef int t
    for t from start <= t < end by LANES:
        scale = vf_within(vf_from_bf16(scales + t), t, lo, hi, zero)
        vf_store(out + t, scale)
        largest = vf_max(largest, scale)
    most = vf_hmax(largest)
    if most > 0:
        units = vf_set(<float>WEIGHT_UNITS / most)
        for t from start <= t < end by LANES:
            vf_store(out + t, vf_mul(vf_load(out + t), units))
    return most

cdef float largest_within(const float* x, int lo, int hi, int start, int end) noexcept nogil:
    cdef vf zero = vf_set(0.0)
    cdef vf largest = zero
    cdef int t
    for t from start <= t < end by LANES:
        largest = vf_max(largest, vf_within(vf_load(x + t), t, lo, hi, zero))
    return vf_hmax(largest)

# coarseness: row_scale · √Dk · the largest visible key scale. The typical error is 22 times that (0.3 · 127
# / √3), in units of log2; 2^-10 is what the error bound can bear.
cdef inline bint scores_too_coarse(float coarseness) noexcept nogil:
    return coarseness * <float>22.0 > <float>0.0009765625

cdef void hide_row(int start, int end, int16_t* weights, PagePart* part) noexcept nogil:
    memset(weights + start, 0, 2 * (end - start))
    part.most = -INFINITY
    part.sum = 0.0
    part.fine = False

# scores (and fine_scores, or NULL) [slots] int32 and key_scales, value_weight [slots]; only slots [start, end), multiples of 16, are
# touched; visible are [lo, hi). exact [slots] is working space: it keeps the unrounded weights.
cdef void weigh_i8(
    const int32_t* scores, const int32_t* fine_scores, const float* key_scales, const float* value_weight,
    float row_scale,
    int lo, int hi, int start, int end, float* exact, int16_t* weights, PagePart* part
) noexcept nogil:
    cdef vf hidden = vf_set(-INFINITY)
    cdef vf most = hidden
    cdef vf scale = vf_set(row_scale)
    cdef vf total = vf_set(0.0)
    cdef vf fine_unit = vf_set(<float>1.0 / <float>QUERY_FINE_UNITS)
    cdef vf s, e
    cdef int t
    if lo >= hi:
        memset(weights + start, 0, 2 * (end - start))
        part.most = -INFINITY
        part.sum = 0.0
        return
    for t from start <= t < end by LANES:
        s = vf_from_i32(scores + t)
        if fine_scores != NULL:
            s = vf_fma(vf_from_i32(fine_scores + t), fine_unit, s)
        s = vf_mul(vf_mul(s, vf_load(key_scales + t)), scale)
        s = vf_within(s, t, lo, hi, hidden)
        vf_store(exact + t, s)
        most = vf_max(most, s)
    part.most = vf_hmax(most)
    most = vf_set(part.most)
    for t from start <= t < end by LANES:
        e = vf_exp2(vf_sub(vf_load(exact + t), most))
        total = vf_add(total, e)
        e = vf_mul(e, vf_load(value_weight + t))
        vf_store(exact + t, e)
        vi_store_i16(weights + t, vi_round(e))
    part.sum = vf_hsum(total)

# What weigh_i8 rounded off, in units of 1/FINE_UNITS: exact [slots] as it left them.
cdef void weigh_remainders(const float* exact, int start, int end, int16_t* fine) noexcept nogil:
    cdef vf units = vf_set(FINE_UNITS)
    cdef vf e
    cdef int t
    for t from start <= t < end by LANES:
        e = vf_load(exact + t)
        vi_store_i16(fine + t, vi_round(vf_mul(vf_sub(e, vf_from_vi(vi_round(e))), units)))

# scores [slots] float32 become the weights in place.
cdef void weigh_f32(
    float* scores, float row_scale, int lo, int hi, int start, int end, PagePart* part
) noexcept nogil:
    cdef vf hidden = vf_set(-INFINITY)
    cdef vf most = hidden
    cdef vf scale = vf_set(row_scale)
    cdef vf total = vf_set(0.0)
    cdef vf run, e
    cdef int t, tile
    part.fine = False
    part.unit = 1.0
    if lo >= hi:
        memset(scores + start, 0, 4 * (end - start))
        part.most = -INFINITY
        part.sum = 0.0
        return
    for t from start <= t < end by LANES:
        e = vf_within(vf_mul(vf_load(scores + t), scale), t, lo, hi, hidden)
        vf_store(scores + t, e)
        most = vf_max(most, e)
    part.most = vf_hmax(most)
    most = vf_set(part.most)
    # Summed in runs, as the products are: a long chain of equal addends would round in one direction.
    for tile in range(start // 16, end // 16):
        run = vf_set(0.0)
        for t from 16 * tile <= t < 16 * (tile + 1) by LANES:
            e = vf_exp2(vf_sub(vf_load(scores + t), most))
            vf_store(scores + t, e)
            run = vf_add(run, e)
        total = vf_add(total, run)
    part.sum = vf_hsum(total)
