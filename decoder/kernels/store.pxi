# Append: quantise n tokens and put them into their slots; and the way back, for reading and comparing.
#
# int8: one scale per (token, kv head), max|x| / 127 rounded up to bfloat16 so that |code| <= 127, never
# below 2^-110 (a row of zeros or denormals stays finite and exact enough); code = round-half-even(x / scale).
# Division, not a reciprocal: the stored bytes are then the same on every tier.

cdef extern from "simd.h":
    enum:
        LANES
        ROW_LIMIT       # of the numbers in rows that products take
    ctypedef struct vf:
        pass
    ctypedef struct vi:
        pass
    vf vf_load(const float*) noexcept nogil
    void vf_store(float*, vf) noexcept nogil
    vf vf_set(float) noexcept nogil
    vf vf_add(vf, vf) noexcept nogil
    vf vf_sub(vf, vf) noexcept nogil
    vf vf_mul(vf, vf) noexcept nogil
    vf vf_div(vf, vf) noexcept nogil
    vf vf_max(vf, vf) noexcept nogil
    vf vf_min(vf, vf) noexcept nogil
    vf vf_abs(vf) noexcept nogil
    vf vf_fma(vf, vf, vf) noexcept nogil
    vf vf_zero_below(vf, vf, vf) noexcept nogil
    float vf_hmax(vf) noexcept nogil
    float vf_hsum(vf) noexcept nogil
    vf vf_from_bf16(const uint16_t*) noexcept nogil
    vf vf_within(vf, int, int, int, vf) noexcept nogil
    vf vf_exp2(vf) noexcept nogil
    vf vf_tanh(vf) noexcept nogil
    float exp2_one(float) noexcept nogil
    bint vf_all_at_most(vf, vf) noexcept nogil
    vi vi_round(vf) noexcept nogil
    vf vf_from_vi(vi) noexcept nogil
    vf vf_from_i32(const int32_t*) noexcept nogil
    void row_store(int8_t*, int64_t, int64_t, vi) noexcept nogil
    void vi_store_i8(int8_t*, vi) noexcept nogil

from libc.string cimport memcmp, memcpy, memset

# One token's row of one kv head as it is stored: float32, or codes in their place, and zero for 16 more; for
# int8 its scale.
cdef struct StoredRow:
    float[1024 + 16] cells
    uint16_t scale

cdef float scale_value(uint16_t bits) noexcept nogil:
    cdef uint32_t wide = <uint32_t>bits << 16
    cdef float value
    memcpy(&value, &wide, 4)
    return value

cdef uint16_t scale_bits(float largest) noexcept nogil:
    cdef float quotient = largest / <float>127.0
    cdef float least = <float>7.703719777548943e-34   # 2^-110
    cdef uint32_t bits
    if quotient < least:
        quotient = least
    memcpy(&bits, &quotient, 4)
    return <uint16_t>((bits + 0xFFFF) >> 16)

cdef void store_row(int storage, const float* x, int dim, StoredRow* row) noexcept nogil:
    cdef float[1024 + 16] padded
    cdef vf largest = vf_set(0.0)
    cdef vf scale
    cdef int i
    if storage == STORE_FLOAT32:
        memcpy(row.cells, x, dim * 4)
        memset(row.cells + dim, 0, 16 * 4)
        return
    memset(<int8_t*>row.cells + dim, 0, 16)
    memcpy(padded, x, dim * 4)
    memset(padded + dim, 0, 16 * 4)
    for i from 0 <= i < dim by LANES:
        largest = vf_max(largest, vf_abs(vf_load(padded + i)))
    row.scale = scale_bits(vf_hmax(largest))
    scale = vf_set(scale_value(row.scale))
    for i from 0 <= i < dim by LANES:
        vi_store_i8(<int8_t*>row.cells + i, vi_round(vf_div(vf_load(padded + i), scale)))

# Where a row's first tile has it: the tile layouts of geometry.pxi, here and in the two functions below. Of
# int8 values it is where the slot and its three neighbours have their codes.
cdef inline char* row_at(const Geometry* g, Page* page, int head, int slot, bint is_key) noexcept nogil:
    cdef char* run = page.at + head * page.run
    if is_key:
        return run + key_bytes(g, slot // 16 * 16) + 4 * (slot % 16)
    run += key_bytes(g, page.slots)
    if g.storage == STORE_FLOAT32:
        return run + 64 * slot
    return run + 64 * (slot // 4)

cdef inline uint16_t* scale_at(const Geometry* g, Page* page, int head, int slot, bint is_key) noexcept nogil:
    cdef char* scales = page.at + head * page.run + key_bytes(g, page.slots) + value_bytes(g, page.slots)
    return <uint16_t*>scales + (slot if is_key else page.slots + slot)

# Keys of both storages: four bytes (four codes or one number) every 64. Values: 64 bytes of every tile, which
# are 16 numbers, or 16 times the codes of four slots, whose other three are written back as they are (a stream
# has one caller at a time); single bytes took 1.4 times as long with AVX-512. Padding goes with it.
cdef void put_row(const Geometry* g, Page* page, int head, int slot, bint is_key, StoredRow* row) noexcept nogil:
    cdef bint codes = g.storage == STORE_INT8
    cdef char* to = row_at(g, page, head, slot, is_key)
    cdef const char* cells = <const char*>row.cells
    cdef int64_t tile = <int64_t>page.slots * (16 if codes else 64)
    cdef int shift = 8 * (slot % 4)
    cdef uint32_t keep = ~(<uint32_t>255 << shift)
    cdef uint32_t* four
    cdef int count, i, lane
    if codes:
        scale_at(g, page, head, slot, is_key)[0] = row.scale
    if is_key:
        count = g.key_pad // 4 if codes else g.key_dim
        for i in range(count):
            memcpy(to + 64 * i, cells + 4 * i, 4)
        return
    count = g.value_pad // 16
    for i in range(count):
        if codes:
            for lane in range(16):
                four = <uint32_t*>to + lane
                four[0] = four[0] & keep | <uint32_t><uint8_t>cells[16 * i + lane] << shift
        else:
            memcpy(to, cells + 64 * i, 64)
        to += tile

cdef void get_row(const Geometry* g, Page* page, int head, int slot, bint is_key, StoredRow* row) noexcept nogil:
    cdef bint codes = g.storage == STORE_INT8
    cdef const char* at = row_at(g, page, head, slot, is_key)
    cdef char* cells = <char*>row.cells
    cdef int64_t tile = <int64_t>page.slots * (16 if codes else 64)
    cdef int count, i, lane
    if codes:
        row.scale = scale_at(g, page, head, slot, is_key)[0]
    if is_key:
        count = g.key_pad // 4 if codes else g.key_dim
        for i in range(count):
            memcpy(cells + 4 * i, at + 64 * i, 4)
        return
    count = g.value_pad // 16
    for i in range(count):
        if codes:
            for lane in range(16):
                cells[16 * i + lane] = at[4 * lane + slot % 4]
        else:
            memcpy(cells + 64 * i, at, 64)
        at += tile

# A page begins a new lap when its slot 0 is written. Centring is not in force yet: mean 0, exponents 0.
cdef void begin_page(const Geometry* g, Page* page, int64_t position) noexcept nogil:
    cdef char* header = page.at + page.tail + 4 * page.slots
    cdef uint32_t magic = PAGE_MAGIC
    cdef uint16_t version = FORMAT_VERSION
    cdef int head
    cdef char* run
    if g.storage == STORE_INT8:
        for head in range(g.kv_heads):
            run = page.at + head * page.run
            memset(run + key_bytes(g, page.slots) + value_bytes(g, page.slots) + 4 * page.slots, 0,
                   3 * g.key_pad)
    memset(page.at + page.tail, 0, 4 * page.slots + 32)
    memcpy(header, &magic, 4)
    memcpy(header + 4, &version, 2)
    header[6] = <char>g.storage
    memcpy(header + 8, &position, 8)

cdef bint row_equal(const Geometry* g, int dim, StoredRow* a, StoredRow* b) noexcept nogil:
    if g.storage == STORE_FLOAT32:
        return memcmp(a.cells, b.cells, 4 * dim) == 0
    return a.scale == b.scale and memcmp(a.cells, b.cells, dim) == 0

cdef void load_row(int storage, StoredRow* row, int dim, float* out) noexcept nogil:
    cdef const int8_t* codes = <const int8_t*>row.cells
    cdef int c
    cdef float scale
    if storage == STORE_FLOAT32:
        memcpy(out, row.cells, 4 * dim)
        return
    scale = scale_value(row.scale)
    for c in range(dim):
        out[c] = <float>codes[c] * scale

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
    cdef Page page
    cdef int64_t i, end, at
    cdef int slot = 0
    cdef int head
    i = 0
    while i < count:
        page = page_at(g, base, table, table_index(g, first + i, &slot))
        if slot == 0:
            begin_page(g, &page, first + i)
        end = min(count, i + tile_tokens(g, first + i, slot))
        for head in range(g.kv_heads):
            for at in range(i, end):
                store_row(g.storage, k + (at * g.kv_heads + head) * g.key_dim, g.key_dim, &row)
                put_row(g, &page, head, slot + <int>(at - i), True, &row)
                store_row(g.storage, v + (at * g.kv_heads + head) * g.value_dim, g.value_dim, &row)
                put_row(g, &page, head, slot + <int>(at - i), False, &row)
        i = end

# Whether the tokens stored at first, first + 1, … have the bytes that k and v would be stored as.
cdef bint same_tokens(
    const Geometry* g, char* base, const int64_t* table, int64_t first, int64_t count,
    const float* k, const float* v
) noexcept nogil:
    cdef StoredRow asked, held
    cdef Page page
    cdef int64_t i
    cdef int slot = 0
    cdef int head
    for i in range(count):
        page = page_at(g, base, table, table_index(g, first + i, &slot))
        for head in range(g.kv_heads):
            store_row(g.storage, k + (i * g.kv_heads + head) * g.key_dim, g.key_dim, &asked)
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
    cdef Page page
    cdef int64_t i
    cdef int slot = 0
    cdef int head
    for i in range(count):
        page = page_at(g, base, table, table_index(g, first + i, &slot))
        for head in range(g.kv_heads):
            get_row(g, &page, head, slot, True, &row)
            load_row(g.storage, &row, g.key_dim, k + (i * g.kv_heads + head) * g.key_dim)
            get_row(g, &page, head, slot, False, &row)
            load_row(g.storage, &row, g.value_dim, v + (i * g.kv_heads + head) * g.value_dim)

cdef bint all_in_range(const float* x, int64_t count, float limit) noexcept nogil:
    cdef int64_t whole = count - count % LANES
    cdef vf most = vf_set(limit)
    cdef int64_t i
    for i from 0 <= i < whole by LANES:
        if not vf_all_at_most(vf_abs(vf_load(x + i)), most):
            return False
    for i in range(whole, count):
        if not -limit <= x[i] <= limit:
            return False
    return True
