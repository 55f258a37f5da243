# A block of product rows on its way through the pages: its working space, its queries, its running state.
# A product row is one (query row, head of the group); flat row f of a call is query row f // G, head f % G.

cdef extern from "tiles.h":
    enum:
        ROW_STEP_BYTES
        VECTOR_TICKS
    ctypedef struct Ahead:
        pass
    ctypedef struct ProductState:
        pass
    void ahead_begin(Ahead*, const char*, int64_t, int64_t) noexcept nogil
    void ahead_step(Ahead*, int) noexcept nogil
    int64_t page_ticks(bint, int, int64_t, int, int) noexcept nogil
    void product_begin(ProductState*) noexcept nogil
    void product_end(ProductState*) noexcept nogil
    void product_awake(const ProductState*) noexcept nogil
    void product_i8(
        const int8_t*, int64_t, int, int, Ahead*, const int8_t*, int64_t, int32_t*, int64_t, int,
        ProductState*
    ) noexcept nogil
    void product_f32(
        const float*, int64_t, int, int, Ahead*, const float*, int64_t, float*, int64_t, int
    ) noexcept nogil

# What a batch is made of: one stream's layer with its query rows.
cdef struct Item:
    Geometry g
    char* base
    const int64_t* table
    int64_t first           # position of the first row
    int64_t rows            # query rows
    int64_t row_step        # row n stands at first + n · row_step
    int64_t right           # positions after its own that a row sees
    int64_t held            # tokens that the layer holds
    float scale
    float softcap           # 0 = none
    const float* slopes     # [Hq], or NULL
    const float* bias       # [heads or 1][rows or 1][columns], or NULL; column m is position bias_first + m
    int64_t bias_first
    int64_t bias_head       # floats from one head's to the next; 0 = one for all
    int64_t bias_row
    const float* q          # [rows, Hq, Dk]
    const float* q_sinks    # [rows, Hq, Dk], or NULL: q
    float* out              # [rows, Hq, Dv]
    float* lse              # [rows, Hq]
    int most_rows           # product rows of a full block
    int64_t blocks          # blocks of product rows
    int64_t ranges          # ranges of pages that the last row may see
    int64_t first_unit
    float* partials         # [kv heads][blocks][ranges] × one partial, or NULL: ranges are not split

# Running state of the online softmax, per row: output so far = acc / sum, relative to 2^most.
cdef struct Partial:
    float* most     # [BLOCK_ROWS], whole vectors
    float* sum      # [BLOCK_ROWS], whole vectors
    float* acc      # [BLOCK_ROWS][Vp]

cdef struct Block:
    int rows                # product rows in use
    int head                # kv head
    int64_t start           # flat number of the first
    int64_t* position       # [BLOCK_ROWS]
    int* lo                 # [BLOCK_ROWS] visible slots of the page at hand
    int* hi
    int64_t* origin         # [BLOCK_ROWS] the position that slot 0 holds, or would
    bint sink_page          # whether the page at hand is
    int* edited             # [BLOCK_ROWS] whether anything is done to the row's scores of the page at hand
    int* hides              # [BLOCK_ROWS] whether its bias hides slots of it
    const Item* item        # whose rows these are
    float* edit             # [PAGE_SLOTS] what is added to one row's
    char* queries           # [BLOCK_ROWS] rows of query_steps int16 (row_store), or [BLOCK_ROWS][Kp] float32
    char* fine_queries      # [BLOCK_ROWS] rows: what rounding took, in 1/QUERY_FINE_UNITS (int8)
    float* plain_queries    # [BLOCK_ROWS][query_steps] float32, as they came (centred keys)
    int8_t* exponents       # [Kp] of the page that the queries are scaled for
    float* offset           # [BLOCK_ROWS] query · mean of the page at hand, in units of log2
    float* row_scale        # [BLOCK_ROWS] score = product · row_scale (· key scale), in units of log2
    float* coarseness       # [BLOCK_ROWS] the most that rounding can take from a score, per unit of key scale
    int32_t* products       # [BLOCK_ROWS][PAGE_SLOTS] queries · keys
    int32_t* fine_products  # [BLOCK_ROWS][PAGE_SLOTS] fine queries · keys
    float* scores           # [BLOCK_ROWS][PAGE_SLOTS] then unrounded weights; float32: also the products
    char* weights           # [BLOCK_ROWS] rows of PAGE_SLOTS int16 (row_store)
    char* fine_weights      # one row
    void* sums              # [BLOCK_ROWS][Vp] int32 or float32
    int32_t* fine_sums      # [Vp]
    float* page_most        # [BLOCK_ROWS] what the page gave: largest score, in units of log2; -inf = nothing
    float* page_sum         # [BLOCK_ROWS] Σ 2^(score - most), the denominator's part
    float* page_unit        # [BLOCK_ROWS] the value of one unit of the weighted sums
    float* few              # [BLOCK_ROWS] the denominator so far, relative to page_most
    float* old_factor       # [BLOCK_ROWS] how much the state so far and the page weigh, relative to both
    float* new_factor
    float* largest_key      # [BLOCK_ROWS] largest visible key scale of the page
    int* fine               # [BLOCK_ROWS] few keys carry the weight: remainders get their own pass
    PageScales* scales      # of the page at hand
    Ahead ahead             # what is fetched meanwhile
    ProductState product
    Partial page_range      # of the range at hand
    Partial total           # of the ranges before it

cdef inline int64_t whole_vectors(int64_t count) noexcept nogil:
    return (count + 15) & ~<int64_t>15

cdef inline char* carve(char** at, int64_t count) noexcept nogil:
    cdef char* here = at[0]
    at[0] = here + ((count + 63) & ~<int64_t>63)
    return here

# Lays a block out from `memory`; with NULL only counts. Returns the bytes it takes.
cdef int64_t block_layout(const Geometry* g, int rows, char* memory, Block* b) noexcept nogil:
    cdef char* at = memory
    cdef Partial* partial
    cdef int64_t numbers = 4 * whole_vectors(rows)
    cdef int64_t slots = <int64_t>rows * PAGE_SLOTS
    cdef int i
    b.position = <int64_t*>carve(&at, 8 * rows)
    b.lo = <int*>carve(&at, 4 * rows)
    b.hi = <int*>carve(&at, 4 * rows)
    b.origin = <int64_t*>carve(&at, 8 * rows)
    b.edit = <float*>carve(&at, 4 * PAGE_SLOTS)
    b.row_scale = <float*>carve(&at, numbers)
    b.coarseness = <float*>carve(&at, numbers)
    b.page_most = <float*>carve(&at, numbers)
    b.page_sum = <float*>carve(&at, numbers)
    b.page_unit = <float*>carve(&at, numbers)
    b.few = <float*>carve(&at, numbers)
    b.offset = <float*>carve(&at, numbers)
    b.largest_key = <float*>carve(&at, numbers)
    b.old_factor = <float*>carve(&at, numbers)
    b.new_factor = <float*>carve(&at, numbers)
    b.fine = <int*>carve(&at, numbers)
    b.edited = <int*>carve(&at, numbers)
    b.hides = <int*>carve(&at, numbers)
    b.queries = carve(&at, (4 if g.storage == STORE_FLOAT32 else 2) * rows * <int64_t>g.query_steps)
    b.scores = <float*>carve(&at, 4 * slots)
    b.sums = carve(&at, 4 * rows * g.value_pad)
    if g.storage == STORE_INT8:
        b.exponents = <int8_t*>carve(&at, g.key_pad)
        b.plain_queries = <float*>carve(&at, 4 * rows * <int64_t>g.query_steps)
        b.fine_queries = carve(&at, 2 * rows * <int64_t>g.query_steps)
        b.products = <int32_t*>carve(&at, 4 * slots)
        b.fine_products = <int32_t*>carve(&at, 4 * slots)
        b.weights = carve(&at, 2 * slots)
        b.fine_weights = carve(&at, 2 * PAGE_SLOTS)
        b.fine_sums = <int32_t*>carve(&at, 4 * g.value_pad)
        b.scales = <PageScales*>carve(&at, sizeof(PageScales))
    for i in range(2):
        partial = &b.page_range if i == 0 else &b.total
        partial.most = <float*>carve(&at, numbers)
        partial.sum = <float*>carve(&at, numbers)
        partial.acc = <float*>carve(&at, 4 * rows * g.value_pad)
    return at - memory

cdef void clear_partial(const Geometry* g, int rows, Partial* p) noexcept nogil:
    cdef int64_t r
    for r in range(whole_vectors(rows)):
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

# The query rows of the block as int16 with one scale each (±ROW_LIMIT, halved above 512 channels so that
# Kp · 127 · ROW_LIMIT stays below 2^31) and what that rounded off as int16 again; or, for float32, as they are.
# Padding is zero.
cdef void load_queries(const Item* item, Block* b, const float* q) noexcept nogil:
    cdef const Geometry* g = &item.g
    cdef float log2e = <float>1.4426950408889634
    cdef float[1024 + 16] padded
    cdef int64_t flat
    cdef const float* row
    cdef int r
    for r in range(b.rows):
        flat = b.start + r
        b.offset[r] = 0.0
        b.position[r] = item.first + flat // g.group * item.row_step
        row = q + ((flat // g.group) * g.kv_heads * g.group + b.head * g.group + flat % g.group) * g.key_dim
        memcpy(padded, row, 4 * g.key_dim)
        memset(padded + g.key_dim, 0, 4 * (g.query_steps - g.key_dim))
        if g.storage == STORE_FLOAT32:
            memcpy(<float*>b.queries + r * g.key_pad, padded, 4 * g.key_pad)
            b.row_scale[r] = item.scale * log2e
        else:
            memcpy(b.plain_queries + <int64_t>r * g.query_steps, padded, 4 * g.query_steps)
    if g.storage == STORE_INT8:
        memset(b.exponents, 0, g.key_pad)
        quantise_queries(g, b, item.scale * log2e)

# plain_queries, scaled by the powers in force, to queries, fine_queries, row_scale and coarseness.
cdef void quantise_queries(const Geometry* g, Block* b, float scale) noexcept nogil:
    cdef int units = ROW_LIMIT if g.key_pad <= 512 else ROW_LIMIT // 2
    cdef float[1024 + 16] padded
    cdef float largest
    cdef vf most, factor, exact, rest
    cdef vf fine_units = vf_set(QUERY_FINE_UNITS)
    cdef vi whole
    cdef int r, i
    for r in range(b.rows):
        memcpy(padded, b.plain_queries + <int64_t>r * g.query_steps, 4 * g.query_steps)
        if g.centring:
            for i in range(g.key_pad):
                if b.exponents[i]:
                    padded[i] = ldexpf(padded[i], b.exponents[i])
        most = vf_set(<float>1e-30)     # keeps the factor finite; so small a query scores zero anyway
        for i from 0 <= i < g.query_steps by LANES:
            most = vf_max(most, vf_abs(vf_load(padded + i)))
        largest = vf_hmax(most)
        factor = vf_set(<float>units / largest)
        rest = vf_set(0.0)
        for i from 0 <= i < g.query_steps by LANES:
            exact = vf_mul(vf_load(padded + i), factor)
            whole = vi_round(exact)
            row_store(<int8_t*>b.queries + 2 * <int64_t>r * g.query_steps, g.query_steps, i, whole)
            exact = vf_sub(exact, vf_from_vi(whole))
            rest = vf_add(rest, vf_abs(exact))
            row_store(<int8_t*>b.fine_queries + 2 * <int64_t>r * g.query_steps, g.query_steps, i,
                      vi_round(vf_mul(exact, fine_units)))
        b.row_scale[r] = (largest / <float>units) * scale
        b.coarseness[r] = vf_hsum(rest) * <float>127.0 * b.row_scale[r]

# Turns the block's queries to a page of centred keys: powers where they are not those in force, and q·mean.
cdef void centre_queries(const Geometry* g, Block* b, const char* centre, float scale) noexcept nogil:
    cdef const uint16_t* mean = <const uint16_t*>centre
    cdef vf zero = vf_set(0.0)
    cdef vf total, part
    cdef int r, i
    if memcmp(b.exponents, centre + 2 * g.key_pad, g.key_pad) != 0:
        memcpy(b.exponents, centre + 2 * g.key_pad, g.key_pad)
        quantise_queries(g, b, scale)
    for r in range(b.rows):
        total = zero
        for i from 0 <= i < g.key_pad by LANES:
            part = vf_from_bf16(mean + i)
            if i + LANES > g.key_pad:   # exponents follow the means
                part = vf_within(part, i, 0, g.key_pad, zero)
            total = vf_fma(part, vf_load(b.plain_queries + <int64_t>r * g.query_steps + i), total)
        b.offset[r] = vf_hsum(total) * scale
