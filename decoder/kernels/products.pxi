# One page's two products with a block of rows (tiles.h), for either storage.

# Products of `rows` queries with one page's keys: [rows][PAGE_SLOTS], slots [start, end), multiples of 16.
cdef void score_page(
    const Geometry* g, const char* keys, int start, int end, Ahead* ahead,
    const char* queries, int rows, void* products, ProductState* state
) noexcept nogil:
    cdef int64_t tile = 16 * g.key_pad
    cdef int64_t skip = start // 16 * tile
    if g.storage == STORE_FLOAT32:
        product_f32(
            <const float*>keys + skip, tile, (end - start) // 16, g.key_pad, ahead,
            <const float*>queries, g.key_pad, <float*>products + start, PAGE_SLOTS, rows,
        )
    else:
        product_i8(
            <const int8_t*>keys + skip, tile, (end - start) // 16, g.key_pad, ahead,
            <const int8_t*>queries, g.query_steps, <int32_t*>products + start, PAGE_SLOTS, rows, state,
        )

# Weighted sums of the page's values: [rows][Vp].
cdef void sum_page(
    const Geometry* g, int slots, const char* values, int start, int end, Ahead* ahead,
    const void* weights, int rows, void* sums, ProductState* state
) noexcept nogil:
    cdef int64_t tile = 16 * slots
    cdef int64_t skip = 16 * start
    if g.storage == STORE_FLOAT32:
        product_f32(
            <const float*>values + skip, tile, g.value_pad // 16, end - start, ahead,
            <const float*>weights + start, PAGE_SLOTS, <float*>sums, g.value_pad, rows,
        )
    else:
        product_i8(
            <const int8_t*>values + skip, tile, g.value_pad // 16, end - start, ahead,
            <const int8_t*>weights + ROW_STEP_BYTES * start, PAGE_SLOTS, <int32_t*>sums, g.value_pad, rows, state,
        )
