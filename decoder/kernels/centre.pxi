# Key centring: what a page's keys are stored relative to. A key k is stored as the codes of (k - mean) / power,
# channel by channel, with power a power of two; scores are then (q · power)·codes + q·mean, which is exact.
#
# Mean and power of a page are a pure function of the stored bytes of the page before it, computed when its slot 0
# is written: so neither chunking nor rollback nor restoring can change them. The first page and the sink page have
# no page before them: their means are 0 and their powers 1.
#
# Power is for channels far larger than the others (some models' key biases and outliers): it brings them down so
# that they do not take the codes from the rest. Channels within a factor of OUTLIER stay as they are: 8 and 16
# did equally well on a real model, 4 no better.
#
# Rejected: the first page's powers from its first key. In real models that key is unlike any other, and what it
# takes from its page cost more than all of centring gains (docs/LOG.md).

cdef enum:
    OUTLIER = 8         # times the median root mean square about the mean
    MAX_EXPONENT = 20   # so that a query scaled by it keeps its other channels in 30 bits

cdef extern from "math.h" nogil:
    float sqrtf(float)
    float ldexpf(float, int)
    float frexpf(float, int*)

cdef struct Centre:
    float[1024 + 16] mean
    float[1024 + 16] power

cdef inline char* centre_at(const Geometry* g, Page* page, int head) noexcept nogil:
    return page.at + head * page.run + key_bytes(g, page.slots) + value_bytes(g, page.slots) + 4 * page.slots

cdef void load_centre(const Geometry* g, Page* page, int head, Centre* centre) noexcept nogil:
    cdef const char* at = centre_at(g, page, head)
    cdef const int8_t* exponents = <const int8_t*>(at + 2 * g.key_pad)
    cdef uint16_t bits = 0
    cdef int c
    for c in range(g.key_pad):
        memcpy(&bits, at + 2 * c, 2)
        centre.mean[c] = scale_value(bits)
        centre.power[c] = ldexpf(1.0, exponents[c])

# One head's row back to float32; `centre` for keys of a centred page, else NULL.
cdef void load_row(
    const Geometry* g, StoredRow* row, int dim, const Centre* centre, float* out
) noexcept nogil:
    cdef const int8_t* codes = <const int8_t*>row.cells
    cdef float scale
    cdef int c
    if g.storage == STORE_FLOAT32:
        memcpy(out, row.cells, 4 * dim)
        return
    scale = scale_value(row.scale)
    for c in range(dim):
        out[c] = <float>codes[c] * scale
        if centre != NULL:
            out[c] = out[c] * centre.power[c] + centre.mean[c]

# To the nearest bfloat16, ties to even; x is finite.
cdef inline uint16_t nearest_bf16(float x) noexcept nogil:
    cdef uint32_t bits
    memcpy(&bits, &x, 4)
    return <uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)

# The median of x [count], which is put into disorder (Hoare's selection).
cdef float median(float* x, int count) noexcept nogil:
    cdef int low = 0, high = count - 1, middle = count // 2, i, j
    cdef float pivot, kept
    while low < high:
        pivot = x[middle]
        i, j = low, high
        while i <= j:
            while x[i] < pivot:
                i += 1
            while pivot < x[j]:
                j -= 1
            if i <= j:
                kept = x[i]
                x[i] = x[j]
                x[j] = kept
                i += 1
                j -= 1
        if j < middle:
            low = i
        if middle < i:
            high = j
    return x[middle]

# sizes [Dk] → exponents: 0, or for channels of OUTLIER times the median or more the power of two nearest to that
# ratio.
cdef void exponents_of(const Geometry* g, const float* sizes, int8_t* exponents) noexcept nogil:
    cdef float[1024] sorted_sizes
    cdef float typical, mantissa
    cdef int c, exponent = 0
    memset(exponents, 0, g.key_pad)
    memcpy(sorted_sizes, sizes, 4 * g.key_dim)
    typical = median(sorted_sizes, g.key_dim)
    if not typical > 0:
        return
    for c in range(g.key_dim):
        if sizes[c] >= OUTLIER * typical:
            mantissa = frexpf(min(sizes[c] / typical, <float>1e9), &exponent)
            exponents[c] = <int8_t>min(exponent - 1 + (mantissa > <float>0.70710678), MAX_EXPONENT)

# Writes mean and exponents of one head of `page`, which are zero so far.
cdef void begin_centre(const Geometry* g, Page* page, Page* before, int head) noexcept nogil:
    cdef float[1024] sizes
    cdef double[1024] total, squares
    cdef float[1024 + 16] row
    cdef StoredRow stored
    cdef Centre centre
    cdef char* at = centre_at(g, page, head)
    cdef double mean, x
    cdef uint16_t bits
    cdef int c, slot
    memset(total, 0, 8 * g.key_dim)
    memset(squares, 0, 8 * g.key_dim)
    load_centre(g, before, head, &centre)
    for slot in range(PAGE_SLOTS):
        get_row(g, before, head, slot, True, &stored)
        load_row(g, &stored, g.key_dim, &centre, row)
        for c in range(g.key_dim):
            x = row[c]
            total[c] += x
            squares[c] += x * x
    for c in range(g.key_dim):
        mean = total[c] / PAGE_SLOTS
        bits = nearest_bf16(<float>mean)
        memcpy(at + 2 * c, &bits, 2)
        sizes[c] = sqrtf(<float>max(0.0, squares[c] / PAGE_SLOTS - mean * mean))
    exponents_of(g, sizes, <int8_t*>(at + 2 * g.key_pad))
