# One row of one kv head: quantise it, put it into its slot, and get it back.
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

cdef bint row_equal(const Geometry* g, int dim, StoredRow* a, StoredRow* b) noexcept nogil:
    if g.storage == STORE_FLOAT32:
        return memcmp(a.cells, b.cells, 4 * dim) == 0
    return a.scale == b.scale and memcmp(a.cells, b.cells, dim) == 0

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
