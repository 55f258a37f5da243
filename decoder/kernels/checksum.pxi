# Checksums of what is stored: of each token in its slot, over all kv heads, and of a page's header and centre.
#
# A token's begins with its position, so that a slot that still has its old lap is no valid one of the new.

cdef extern from "crc32c.h":
    void crc32c_prepare() noexcept nogil
    uint32_t crc32c(uint32_t, const void*, int64_t) noexcept nogil

crc32c_prepare()

cdef inline uint32_t* checksum_at(Page* page, int slot) noexcept nogil:
    return <uint32_t*>(page.at + page.tail) + slot

cdef inline uint32_t checksum_begin(int64_t position) noexcept nogil:
    return crc32c(0, &position, 8)

# Continues a token's with a key or value row as put_row stores it.
cdef inline uint32_t checksum_row(const Geometry* g, uint32_t crc, int dim, const StoredRow* row) noexcept nogil:
    if g.storage == STORE_FLOAT32:
        return crc32c(crc, row.cells, 4 * dim)
    return crc32c(crc32c(crc, row.cells, dim), &row.scale, 2)

# Of the first 16 bytes of the header and, for int8, of all heads' means and exponents.
cdef uint32_t checksum_header(const Geometry* g, Page* page) noexcept nogil:
    cdef uint32_t crc = crc32c(0, page.at + page.tail + 4 * page.slots, 16)
    cdef int head
    if g.storage == STORE_INT8:
        for head in range(g.kv_heads):
            crc = crc32c(crc, centre_at(g, page, head), 3 * g.key_pad)
    return crc

# Whether a page's header says that it is one of this ring, and that its slot 0 holds `position`.
cdef bint header_sound(const Geometry* g, Page* page, int64_t position) noexcept nogil:
    cdef const char* header = page.at + page.tail + 4 * page.slots
    cdef uint32_t magic = 0, crc = 0
    cdef uint16_t version = 0
    cdef int64_t held = 0
    memcpy(&magic, header, 4)
    memcpy(&version, header + 4, 2)
    memcpy(&held, header + 8, 8)
    memcpy(&crc, header + 16, 4)
    return (
        magic == PAGE_MAGIC and version == FORMAT_VERSION and header[6] == <char>g.storage
        and header[7] == <char>g.centring and held == position and crc == checksum_header(g, page)
    )

# The first of the tokens at first, first + 1, … that is not as it was stored, or whose page is not; -1 = none.
cdef int64_t first_damaged(
    const Geometry* g, char* base, const int64_t* table, int64_t first, int64_t count
) noexcept nogil:
    cdef StoredRow row
    cdef Page page
    cdef uint32_t crc
    cdef int64_t position
    cdef int slot = 0
    cdef int head
    for position in range(first, first + count):
        page = page_at(g, base, table, table_index(g, position, &slot))
        if (slot == 0 or position == first) and not header_sound(g, &page, position - slot):
            return position
        crc = checksum_begin(position)
        for head in range(g.kv_heads):
            get_row(g, &page, head, slot, True, &row)
            crc = checksum_row(g, crc, g.key_dim, &row)
            get_row(g, &page, head, slot, False, &row)
            crc = checksum_row(g, crc, g.value_dim, &row)
        if crc != checksum_at(&page, slot)[0]:
            return position
    return -1
