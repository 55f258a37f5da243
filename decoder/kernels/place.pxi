# Tokens into their slots and back, page by page.

# x [Dk] as what is stored of it: to `row`.
cdef inline void store_key(
    const Geometry* g, const float* x, const Centre* centre, StoredRow* row
) noexcept nogil:
    cdef float[1024] about
    cdef int c
    if centre == NULL:
        store_row(g.storage, x, g.key_dim, row)
        return
    for c in range(g.key_dim):
        about[c] = (x[c] - centre.mean[c]) / centre.power[c]
    store_row(g.storage, about, g.key_dim, row)

# Loads a head's centre where the page has one.
cdef inline const Centre* centre_of(const Geometry* g, Page* page, int head, Centre* loaded) noexcept nogil:
    if not g.centring:
        return NULL
    load_centre(g, page, head, loaded)
    return loaded

# A page begins a new lap when its slot 0 is written.
cdef void begin_page(
    const Geometry* g, char* base, const int64_t* table, Page* page, int64_t position
) noexcept nogil:
    cdef char* header = page.at + page.tail + 4 * page.slots
    cdef uint32_t magic = PAGE_MAGIC
    cdef uint16_t version = FORMAT_VERSION
    cdef uint32_t crc
    cdef Page before
    cdef Page* found = NULL
    cdef int slot = 0
    cdef int head
    if position >= g.sinks + PAGE_SLOTS:
        before = page_at(g, base, table, table_index(g, position - PAGE_SLOTS, &slot))
        found = &before
    if g.storage == STORE_INT8:
        for head in range(g.kv_heads):
            memset(centre_at(g, page, head), 0, 3 * g.key_pad)
            if g.centring and found != NULL:
                begin_centre(g, page, found, head)
    memset(page.at + page.tail, 0, 4 * page.slots + 32)
    memcpy(header, &magic, 4)
    memcpy(header + 4, &version, 2)
    header[6] = <char>g.storage
    header[7] = <char>g.centring
    memcpy(header + 8, &position, 8)
    crc = checksum_header(g, page)
    memcpy(header + 16, &crc, 4)

# Tokens from `position` on, in slots from `slot` on, that have their keys in one tile.
cdef inline int64_t tile_tokens(const Geometry* g, int64_t position, int slot) noexcept nogil:
    cdef int64_t tokens = 16 - slot % 16
    return min(tokens, g.sinks - position) if position < g.sinks else tokens

# k [n, Hkv, Dk], v [n, Hkv, Dv]: tokens at positions first, first + 1, … Head by head within a tile, whose
# lines then stay in the first-level cache: a token writes into one line per four channels.
cdef void place_tokens(
    const Geometry* g, char* base, const int64_t* table, int64_t first, int64_t count,
    const float* k, const float* v
) noexcept nogil:
    cdef StoredRow row
    cdef Centre loaded
    cdef const Centre* centre
    cdef Page page
    cdef uint32_t[16] crc
    cdef int64_t i, end, at
    cdef int slot = 0
    cdef int head
    i = 0
    while i < count:
        page = page_at(g, base, table, table_index(g, first + i, &slot))
        if slot == 0:
            begin_page(g, base, table, &page, first + i)
        end = min(count, i + tile_tokens(g, first + i, slot))
        for at in range(i, end):
            crc[at - i] = checksum_begin(first + at)
        for head in range(g.kv_heads):
            centre = centre_of(g, &page, head, &loaded)
            for at in range(i, end):
                store_key(g, k + (at * g.kv_heads + head) * g.key_dim, centre, &row)
                put_row(g, &page, head, slot + <int>(at - i), True, &row)
                crc[at - i] = checksum_row(g, crc[at - i], g.key_dim, &row)
                store_row(g.storage, v + (at * g.kv_heads + head) * g.value_dim, g.value_dim, &row)
                put_row(g, &page, head, slot + <int>(at - i), False, &row)
                crc[at - i] = checksum_row(g, crc[at - i], g.value_dim, &row)
        for at in range(i, end):
            checksum_at(&page, slot + <int>(at - i))[0] = crc[at - i]
        i = end

# Whether the tokens stored at first, first + 1, … have the bytes that k and v would be stored as.
cdef bint same_tokens(
    const Geometry* g, char* base, const int64_t* table, int64_t first, int64_t count,
    const float* k, const float* v
) noexcept nogil:
    cdef StoredRow asked, held
    cdef Centre loaded
    cdef Page page
    cdef int64_t i
    cdef int slot = 0
    cdef int head
    for i in range(count):
        page = page_at(g, base, table, table_index(g, first + i, &slot))
        for head in range(g.kv_heads):
            store_key(g, k + (i * g.kv_heads + head) * g.key_dim, centre_of(g, &page, head, &loaded), &asked)
            get_row(g, &page, head, slot, True, &held)
            if not row_equal(g, g.key_dim, &asked, &held):
                return False
            store_row(g.storage, v + (i * g.kv_heads + head) * g.value_dim, g.value_dim, &asked)
            get_row(g, &page, head, slot, False, &held)
            if not row_equal(g, g.value_dim, &asked, &held):
                return False
    return True

cdef void read_tokens(
    const Geometry* g, char* base, const int64_t* table, int64_t first, int64_t count, float* k, float* v
) noexcept nogil:
    cdef StoredRow row
    cdef Centre loaded
    cdef Page page
    cdef int64_t i
    cdef int slot = 0
    cdef int head
    for i in range(count):
        page = page_at(g, base, table, table_index(g, first + i, &slot))
        for head in range(g.kv_heads):
            get_row(g, &page, head, slot, True, &row)
            load_row(g, &row, g.key_dim, centre_of(g, &page, head, &loaded), k + (i * g.kv_heads + head) * g.key_dim)
            get_row(g, &page, head, slot, False, &row)
            load_row(g, &row, g.value_dim, NULL, v + (i * g.kv_heads + head) * g.value_dim)
