/* Products of stored tiles with a block of rows: the inner loops of attention, twice the same shape.
 *
 * A tile has 16 lanes. For the scores the lanes are tokens and the steps are channels, for the output
 * the lanes are channels and the steps are tokens, so one routine serves both:
 *     out[r][lane] = sum over steps of tile[step][lane] * row[r][step]
 * int8 tiles hold four steps of a lane together ([steps/4][16 lanes][4]), as the byte multiplies of every
 * processor want them (VNNI, AMX, NEON's sdot); pairs of int16 come out of it with shifts. No horizontal sum,
 * and the sum is exact.
 *
 * Each tile is loaded once for up to ROW_BLOCK rows; more rows find it in the first-level cache. The
 * register blocks are chosen so that accumulators, tile and broadcast fit the register file (gcc spills
 * otherwise, which cost a factor of two).
 */
#ifndef RONDEL_TILES_H
#define RONDEL_TILES_H

#include "ahead.h"

/* Register blocks, rows × tiles. Every code vector serves all rows, every broadcast all tiles; there must be
 * accumulators enough to hide the latency of the multiply-add, and no more than there are registers. Planes
 * take two accumulators a row and tile. */
#if LANES == 16
#define ROW_BLOCK 8
#ifdef ROW_PLANES
#define TILES_FOR(rows) ((rows) <= 2 ? 4 : (rows) <= 4 ? 2 : 1)
#else
#define TILES_FOR(rows) ((rows) <= 4 ? 4 : 2)
#endif
#elif LANES == 8
#define ROW_BLOCK 4
#define TILES_FOR(rows) ((rows) <= 2 ? 2 : 1)
#else
#define ROW_BLOCK 2
#define TILES_FOR(rows) 1
#endif
#define TILES_MAX TILES_FOR(1)

/* The cases of a switch over fewer rows than ROW_BLOCK. */
#if ROW_BLOCK == 8
#define FEWER_ROWS(call, ...) \
    case 1: call(__VA_ARGS__, 1); break; \
    case 2: call(__VA_ARGS__, 2); break; \
    case 3: call(__VA_ARGS__, 3); break; \
    case 4: call(__VA_ARGS__, 4); break; \
    case 5: call(__VA_ARGS__, 5); break; \
    case 6: call(__VA_ARGS__, 6); break; \
    case 7: call(__VA_ARGS__, 7); break;
#elif ROW_BLOCK == 4
#define FEWER_ROWS(call, ...) \
    case 1: call(__VA_ARGS__, 1); break; \
    case 2: call(__VA_ARGS__, 2); break; \
    case 3: call(__VA_ARGS__, 3); break;
#else
#define FEWER_ROWS(call, ...) \
    case 1: call(__VA_ARGS__, 1); break;
#endif

#include "tiles_f32.h"

#ifdef __AMX_INT8__
#include "tiles_amx.h"
#define PRODUCT_TICKS(rows, bytes) ((bytes) / 1024 * KILOBYTE_TICKS)
#else
#define PRODUCT_TICKS(rows, bytes) ((bytes) / 64 * LINE_TICKS(rows))

/* What a tier keeps between products of one thread: nothing, except on the matrix unit. */
typedef struct {
    int unused;
} ProductState;
static inline void product_begin(ProductState *state) { state->unused = 0; }
static inline void product_end(ProductState *state) { state->unused = 0; }
static inline void product_awake(const ProductState *state) { (void)state; }

#ifdef ROW_PLANES
#include "tiles_planes.h"
#else
#include "tiles_pairs.h"
#endif

ALWAYS void product_i8_rows(const int8_t *tile, int64_t tile_bytes, int tiles, int steps,
                            Ahead *ahead, const int8_t *rows, int64_t row_steps, int32_t *out,
                            int64_t out_stride, const int count)
{
    const int most = TILES_FOR(count);
    RowStarts starts;
    start_rows(&starts, rows, row_steps, steps, count);
    for (; tiles >= most; tiles -= most) {
        product_i8_block(tile, tile_bytes, steps, ahead, rows, row_steps, &starts, out, out_stride, count, most);
        tile += most * tile_bytes;
        out += most * 16;
    }
    for (; most > 1 && tiles > 0; tiles--) {
        product_i8_block(tile, tile_bytes, steps, ahead, rows, row_steps, &starts, out, out_stride, count, 1);
        tile += tile_bytes;
        out += 16;
    }
}

/* tile:  [tiles], tile_bytes apart: [steps/4][16][4] int8
 * steps: a multiple of 8
 * ahead: what is fetched meanwhile
 * rows:  [count] rows as row_store left them, each of row_steps steps (a multiple of 16), from some step on
 *        that is ROW_STEP_BYTES · step beyond the row's beginning
 * out:   [count] rows of int32, out_stride apart, 16 per tile written */
static void product_i8(const int8_t *tile, int64_t tile_bytes, int tiles, int steps, Ahead *ahead,
                       const int8_t *rows, int64_t row_steps, int32_t *out, int64_t out_stride, int count,
                       ProductState *state)
{
    (void)state;
    for (; count >= ROW_BLOCK; count -= ROW_BLOCK) {
        product_i8_rows(tile, tile_bytes, tiles, steps, ahead, rows, row_steps, out, out_stride, ROW_BLOCK);
        rows += ROW_BLOCK * 2 * row_steps;
        out += ROW_BLOCK * out_stride;
    }
    switch (count) {
        FEWER_ROWS(product_i8_rows, tile, tile_bytes, tiles, steps, ahead, rows, row_steps, out, out_stride)
    default: break;
    }
}

#endif /* __AMX_INT8__ */

/* The ticks of `rows` rows on a page: both products with `bytes` of keys and values, the scales and the softmax of so
 * many slots, the merging of so many channels. */
static inline int64_t page_ticks(int whole_numbers, int rows, int64_t bytes, int slots, int channels)
{
    int64_t products = whole_numbers ? PRODUCT_TICKS(rows, bytes) : bytes / 64 * LINE_TICKS(rows);
    return products + (int64_t)rows * (slots + channels) / LANES * VECTOR_TICKS + 2 * slots / LANES * VECTOR_TICKS;
}

#endif
