# Scores as they are before softcap, bias and masks, for looking into: one thread, the same products.

cdef void write_page_scores(
    const Item* item, Block* b, Page* page, float* into, int64_t column_first, int64_t columns
) noexcept nogil:
    cdef const Geometry* g = &item.g
    cdef const char* run = page.at + b.head * page.run
    cdef const uint16_t* scales = <const uint16_t*>(run + key_bytes(g, page.slots) + value_bytes(g, page.slots))
    cdef float* row
    cdef int64_t flat, at, column
    cdef int r, t
    if g.centring:
        centre_queries(g, b, centre_at(g, page, b.head), item.scale * <float>1.4426950408889634)
    ahead_begin(&b.ahead, run, 0, 1)    # nothing
    score_page(g, run, 0, page.slots, &b.ahead, b.queries, b.rows,
               <void*>b.products if g.storage == STORE_INT8 else b.scores, &b.product)
    if g.storage == STORE_INT8:
        score_page(g, run, 0, page.slots, &b.ahead, b.fine_queries, b.rows, b.fine_products, &b.product)
    for r in range(b.rows):
        row = b.scores + r * PAGE_SLOTS
        if b.lo[r] >= b.hi[r]:
            continue
        if g.storage == STORE_INT8:
            load_scales(scales, scales + page.slots, b.lo[r], b.hi[r], 0, page.slots, NULL, b.scales,
                        &b.ahead)
            scores_i8(b.products + r * PAGE_SLOTS, b.fine_products + r * PAGE_SLOTS, b.scales, b.row_scale[r],
                      b.offset[r], 0, page.slots, row)
        else:
            scores_f32(row, b.row_scale[r], b.lo[r], b.hi[r], 0, page.slots)
        flat = b.start + r
        at = (flat // g.group) * g.kv_heads * g.group + b.head * g.group + flat % g.group
        for t in range(b.lo[r], b.hi[r]):
            column = b.origin[r] + t - column_first
            if 0 <= column < columns:
                into[at * columns + column] = row[t] * <float>0.6931471805599453

# into [rows, Hq, columns]: column m is position column_first + m; cells that a row does not see stay as they are.
cdef void write_scores(
    const Item* item, char* memory, float* into, int64_t column_first, int64_t columns
) noexcept nogil:
    cdef const Geometry* g = &item.g
    cdef Block b
    cdef Page page
    cdef int64_t block, ring_page, ring_pages
    cdef int head
    block_layout(g, item.most_rows, memory, &b)
    for head in range(g.kv_heads):
        for block in range(item.blocks):
            b.rows, b.head, b.start = block_rows(item, block), head, block * BLOCK_ROWS
            product_begin(&b.product)
            if g.sink_slots:
                load_queries(item, &b, item.q if item.q_sinks == NULL else item.q_sinks)
                page = page_at(g, item.base, item.table, 0)
                see_sinks(item, &b)
                write_page_scores(item, &b, &page, into, column_first, columns)
            load_queries(item, &b, item.q)
            ring_pages = ring_pages_seen(item, &b)
            for ring_page in range(ring_pages):
                page = page_at(g, item.base, item.table, 1 + ring_page)
                see_ring_page(item, &b, ring_page)
                write_page_scores(item, &b, &page, into, column_first, columns)
            product_end(&b.product)
