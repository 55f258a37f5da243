# A block of product rows on its way through the pages: its working space, its queries, its running state.
# A product row is one (query row, head of the group); flat row f of a call is query row f // G, head f % G.

# Running state of the online softmax, per row: output so far = acc / sum, relative to 2^most.
cdef struct Partial:
    float* most     # [BLOCK_ROWS]
    float* sum      # [BLOCK_ROWS]
    float* acc      # [BLOCK_ROWS][Vp]

cdef struct Block:
    int rows                # product rows in use
    int64_t* position       # [BLOCK_ROWS]
    int* lo                 # [BLOCK_ROWS] visible slots of the page at hand
    int* hi
    void* queries           # [BLOCK_ROWS][Kp] int16 or float32
    int16_t* fine_queries   # [BLOCK_ROWS][Kp] what rounding took, in 1/QUERY_FINE_UNITS (int8)
    float* row_scale        # [BLOCK_ROWS] score = product · row_scale (· key scale), in units of log2
    void* scores            # [BLOCK_ROWS][PAGE_SLOTS] int32 or float32
    float* exact            # [BLOCK_ROWS][PAGE_SLOTS] unrounded weights (int8)
    int16_t* weights        # [BLOCK_ROWS][PAGE_SLOTS] (int8)
    int16_t* fine           # [PAGE_SLOTS] remainders of one row (int8)
    void* sums              # [BLOCK_ROWS][Vp] int32 or float32
    int32_t* fine_sums      # [Vp]
    int32_t* fine_scores    # [PAGE_SLOTS]
    PagePart* parts         # [BLOCK_ROWS]
    float* key_scales       # [PAGE_SLOTS]
    float* value_weight     # [PAGE_SLOTS]
    Partial page_range      # of the range at hand
    Partial total           # of the ranges before it

cdef inline char* carve(char** at, int64_t count) noexcept nogil:
    cdef char* here = at[0]
    at[0] = here + ((count + 63) & ~<int64_t>63)
    return here

# Lays a block out from `memory`; with NULL only counts. Returns the bytes it takes.
cdef int64_t block_layout(const Geometry* g, int rows, char* memory, Block* b) noexcept nogil:
    cdef char* at = memory
    cdef Partial* partial
    cdef int i
    b.position = <int64_t*>carve(&at, 8 * rows)
    b.lo = <int*>carve(&at, 4 * rows)
    b.hi = <int*>carve(&at, 4 * rows)
    b.queries = carve(&at, 4 * rows * g.key_pad)
    b.fine_queries = <int16_t*>carve(&at, 2 * rows * g.key_pad + 64)
    b.row_scale = <float*>carve(&at, 4 * rows)
    b.scores = carve(&at, 4 * rows * PAGE_SLOTS)
    b.exact = <float*>carve(&at, 4 * rows * PAGE_SLOTS)
    b.weights = <int16_t*>carve(&at, 2 * rows * PAGE_SLOTS)
    b.fine = <int16_t*>carve(&at, 2 * PAGE_SLOTS)
    b.sums = carve(&at, 4 * rows * g.value_pad)
    b.fine_sums = <int32_t*>carve(&at, 4 * g.value_pad)
    b.fine_scores = <int32_t*>carve(&at, 4 * PAGE_SLOTS)
    b.parts = <PagePart*>carve(&at, sizeof(PagePart) * rows)
    b.key_scales = <float*>carve(&at, 4 * PAGE_SLOTS)
    b.value_weight = <float*>carve(&at, 4 * PAGE_SLOTS)
    for i in range(2):
        partial = &b.page_range if i == 0 else &b.total
        partial.most = <float*>carve(&at, 4 * rows)
        partial.sum = <float*>carve(&at, 4 * rows)
        partial.acc = <float*>carve(&at, 4 * rows * g.value_pad)
    return at - memory

cdef void clear_partial(const Geometry* g, int rows, Partial* p) noexcept nogil:
    cdef int r
    for r in range(rows):
        p.most[r] = -INFINITY
        p.sum[r] = 0.0
    memset(p.acc, 0, 4 * <int64_t>rows * g.value_pad)

# How much the state so far and the new part weigh, relative to their common maximum.
cdef inline void merge_factors(float most, float new_most, float* old_factor, float* new_factor) noexcept nogil:
    old_factor[0] = 1.0
    new_factor[0] = 1.0
    if new_most > most:
        old_factor[0] = exp2_one(most - new_most)
    else:
        new_factor[0] = exp2_one(new_most - most)

# The query rows of the block as int16 with one scale each (±32,767, halved above 512 channels so that
# Kp · 127 · 32,767 stays below 2^31) and what that rounded off as int16 again; or, for float32, as they are.
# Padding is zero.
cdef void load_queries(
    const Geometry* g, Block* b, int head, const float* q, int64_t first, int64_t start, float scale
) noexcept nogil:
    cdef int units = 32767 if g.key_pad <= 512 else 16383
    cdef float log2e = <float>1.4426950408889634
    cdef float[1024 + 16] padded
    cdef float largest
    cdef vf most, factor, exact
    cdef vf fine_units = vf_set(QUERY_FINE_UNITS)
    cdef vi whole
    cdef int64_t flat
    cdef const float* row
    cdef int r, i
    for r in range(b.rows):
        flat = start + r
        b.position[r] = first + flat // g.group
        row = q + ((flat // g.group) * g.kv_heads * g.group + head * g.group + flat % g.group) * g.key_dim
        memcpy(padded, row, 4 * g.key_dim)
        memset(padded + g.key_dim, 0, 4 * (1024 + 16 - g.key_dim))
        if g.storage == STORE_FLOAT32:
            memcpy(<float*>b.queries + r * g.key_pad, padded, 4 * g.key_pad)
            b.row_scale[r] = scale * log2e
            continue
        most = vf_set(<float>1e-30)     # keeps the factor finite; so small a query scores zero anyway
        for i from 0 <= i < g.key_pad by LANES:
            most = vf_max(most, vf_abs(vf_load(padded + i)))
        largest = vf_hmax(most)
        factor = vf_set(<float>units / largest)
        # The last vector may spill into the next row, which is written after it.
        for i from 0 <= i < g.key_pad by LANES:
            exact = vf_mul(vf_load(padded + i), factor)
            whole = vi_round(exact)
            vi_store_i16(<int16_t*>b.queries + r * g.key_pad + i, whole)
            exact = vf_mul(vf_sub(exact, vf_from_vi(whole)), fine_units)
            vi_store_i16(b.fine_queries + r * g.key_pad + i, vi_round(exact))
        b.row_scale[r] = (largest / <float>units) * scale * log2e
