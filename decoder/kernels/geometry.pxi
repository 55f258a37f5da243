# Where things are: the shape of a layer's ring as the kernels see it, and the arithmetic from positions
# to slots. Sizes only; the memory belongs to the cache.
#
# A page of T token slots holds one contiguous run per kv head, then a tail for the whole page:
#   int8:     K codes [T/16][Kp/4][16][4] · V codes [Vp/16][T/4][16][4] · K scales [T] · V scales [T]
#             (bfloat16) · key mean [Kp] (bfloat16) · key exponents [Kp] (int8)
#   float32:  K [T/16][Kp][16] · V [Vp/16][T][16]
#   tail:     crc32c per slot [T] (uint32) · page header (32 bytes, see cache/layout.py)
# Kp is Dk rounded up to 8, Vp is Dv rounded up to 16; the padding is zero and stays zero.

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uintptr_t

cdef enum:
    PAGE_SLOTS = 128
    RANGE_PAGES = 16    # ring pages per partial result: fixed, so that threads and chunks change no bit
    BLOCK_ROWS = 64     # product rows (query row × head of the group) that share one pass over a page
    STORE_INT8 = 0
    STORE_FLOAT32 = 1
    FORMAT_VERSION = 1      # of a page; also in cache/layout.py
    PAGE_MAGIC = 0x47505252 # "RRPG"

cdef struct Geometry:
    int storage
    int kv_heads
    int group           # G
    int key_dim         # Dk
    int value_dim       # Dv
    int key_pad         # Kp
    int value_pad       # Vp
    int query_steps     # Kp rounded up to 16: room that a query takes
    int64_t window      # W; larger than any position when unbounded
    int64_t sinks       # S
    int64_t capacity    # slots in the ring, a multiple of PAGE_SLOTS
    int sink_slots      # S rounded up to 16; 0 = no sink page
    int64_t ring_run    # bytes of one kv head's run in a ring page
    int64_t ring_tail   # offset of a ring page's tail
    int64_t sink_run
    int64_t sink_tail

cdef struct Page:
    char* at            # first byte; NULL = not there
    int slots           # T
    int64_t run         # bytes per kv head
    int64_t tail        # offset of the tail

# The order is that of PageLayout.words() in cache/layout.py.
cdef Geometry geometry_from(const int64_t[::1] words) except *:
    if words.shape[0] != 15:
        raise ValueError(f"a geometry has 15 words, got {words.shape[0]}")
    cdef Geometry g
    g.storage = <int>words[0]
    g.kv_heads = <int>words[1]
    g.group = <int>words[2]
    g.key_dim = <int>words[3]
    g.value_dim = <int>words[4]
    g.key_pad = <int>words[5]
    g.value_pad = <int>words[6]
    g.query_steps = (g.key_pad + 15) & ~15
    g.window = words[7]
    g.sinks = words[8]
    g.capacity = words[9]
    g.sink_slots = <int>words[10]
    g.ring_run = words[11]
    g.ring_tail = words[12]
    g.sink_run = words[13]
    g.sink_tail = words[14]
    return g

# table[0] is the sink page, table[1 + i] ring page i: byte offsets from base, -1 = not taken
cdef inline Page page_at(const Geometry* g, char* base, const int64_t* table, int64_t index) noexcept nogil:
    cdef Page page
    cdef bint sink = index == 0
    page.at = NULL if table[index] < 0 else base + table[index]
    page.slots = g.sink_slots if sink else PAGE_SLOTS
    page.run = g.sink_run if sink else g.ring_run
    page.tail = g.sink_tail if sink else g.ring_tail
    return page

cdef inline int64_t table_index(const Geometry* g, int64_t position, int* slot) noexcept nogil:
    cdef int64_t place
    if position < g.sinks:
        slot[0] = <int>position
        return 0
    place = (position - g.sinks) % g.capacity
    slot[0] = <int>(place % PAGE_SLOTS)
    return 1 + place // PAGE_SLOTS

# The slots [lo, hi) of a ring page that hold positions [start, end), counted from the first position after the
# sinks, and which of those slot 0 holds, or would. They are one circular interval of at most capacity - 128
# slots (or start at slot 0 when unbounded), so a page never holds two pieces of it.
cdef inline void visible_slots(
    const Geometry* g, int64_t start, int64_t end, int64_t ring_page, int* lo, int* hi, int64_t* origin
) noexcept nogil:
    cdef int64_t count, away
    if start < 0:
        start = 0
    count = end - start
    lo[0] = 0
    hi[0] = 0
    origin[0] = 0
    if count <= 0:
        return
    away = (ring_page * PAGE_SLOTS - start) % g.capacity
    if away < 0:
        away += g.capacity
    if away < count:
        hi[0] = <int>min(<int64_t>PAGE_SLOTS, count - away)
        origin[0] = start + away
    elif away + PAGE_SLOTS > g.capacity:
        lo[0] = <int>(g.capacity - away)
        hi[0] = <int>min(<int64_t>PAGE_SLOTS, lo[0] + count)
        origin[0] = start + away - g.capacity

cdef inline int64_t key_bytes(const Geometry* g, int slots) noexcept nogil:
    return <int64_t>slots * g.key_pad * (4 if g.storage == STORE_FLOAT32 else 1)

cdef inline int64_t value_bytes(const Geometry* g, int slots) noexcept nogil:
    return <int64_t>slots * g.value_pad * (4 if g.storage == STORE_FLOAT32 else 1)
