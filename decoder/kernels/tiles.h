/* Products of stored tiles with a block of rows: the inner loops of attention, twice the same shape.
 *
 * A tile has 16 lanes. For the scores the lanes are tokens and the steps are channels, for the output
 * the lanes are channels and the steps are tokens, so one routine serves both:
 *     out[r][lane] = sum over steps of tile[step][lane] * row[r][step]
 * int8 tiles take two steps at a time ([steps/2][16 lanes][2]), since every instruction set here has a
 * multiply of int16 pairs that adds into int32: no horizontal sum, and the sum is exact.
 *
 * Each tile is loaded once for up to ROW_BLOCK rows; more rows find it in the first-level cache. The
 * register blocks are chosen so that accumulators, tile and broadcast fit the register file (gcc spills
 * otherwise, which cost a factor of two).
 */
#ifndef RONDEL_TILES_H
#define RONDEL_TILES_H

#include "simd.h"

#define ALWAYS static inline __attribute__((always_inline))

#define PREFETCH(p) __builtin_prefetch(p, 0, 2)

/* Register blocks, rows × tiles. Every code vector serves all rows, every broadcast pair all tiles; there
 * must be accumulators enough to hide the latency of the multiply-add, and no more than there are registers. */
#if LANES == 16
#define ROW_BLOCK 8
#define TILES_FOR(rows) ((rows) <= 4 ? 4 : 2)
#elif LANES == 8
#define ROW_BLOCK 4
#define TILES_FOR(rows) ((rows) <= 2 ? 2 : 1)
#else
#define ROW_BLOCK 2
#define TILES_FOR(rows) 1
#endif
#define TILES_MAX TILES_FOR(1)

/* `count` rows with `tiles` tiles, tile_bytes apart; both constants after inlining. */
ALWAYS void product_i8_block(const int8_t *tile, int64_t tile_bytes, int pairs, const int8_t *ahead,
                             const int16_t *rows, int64_t row_stride, int32_t *out, int64_t out_stride,
                             const int count, const int tiles)
{
    const int parts = tiles * PARTS;
    vi acc[ROW_BLOCK][TILES_MAX * PARTS];
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
#pragma GCC unroll 16
        for (int part = 0; part < parts; part++)
            acc[r][part] = vi_zero();
    /* One pointer per tile and per row, one offset for all: anything else costs scalar work per load. */
    const int8_t *tile_at[TILES_MAX], *ahead_at[TILES_MAX];
    const char *row_at[ROW_BLOCK];
#pragma GCC unroll 4
    for (int t = 0; t < tiles; t++) {
        tile_at[t] = tile + tile_bytes * t;
        ahead_at[t] = ahead + tile_bytes * t;
    }
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
        row_at[r] = (const char *)(rows + r * row_stride);
    for (int64_t at = 0; at < 4 * (int64_t)pairs; at += 8) {
#pragma GCC unroll 4
        for (int t = 0; t < tiles; t++)
            PREFETCH(ahead_at[t] + 8 * at);
#pragma GCC unroll 2
        for (int j = 0; j < 8; j += 4) {
            vc codes[TILES_MAX * PARTS];
#pragma GCC unroll 16
            for (int part = 0; part < parts; part++)
                codes[part] = vc_load(tile_at[part / PARTS] + 8 * at + 8 * j + 2 * LANES * (part % PARTS));
#pragma GCC unroll 8
            for (int r = 0; r < count; r++) {
                vc pair = vc_pair((const int16_t *)(row_at[r] + at + j));
#pragma GCC unroll 16
                for (int part = 0; part < parts; part++)
                    acc[r][part] = vi_dot(acc[r][part], codes[part], pair);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
#pragma GCC unroll 16
        for (int part = 0; part < parts; part++)
            vi_store(out + r * out_stride + LANES * part, acc[r][part]);
}

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

ALWAYS void product_i8_rows(const int8_t *tile, int64_t tile_bytes, int tiles, int pairs,
                             const int8_t *ahead, const int16_t *rows, int64_t row_stride, int32_t *out,
                             int64_t out_stride, const int count)
{
    const int most = TILES_FOR(count);
    for (; tiles >= most; tiles -= most) {
        product_i8_block(tile, tile_bytes, pairs, ahead, rows, row_stride, out, out_stride, count, most);
        tile += most * tile_bytes;
        ahead += most * tile_bytes;
        out += most * 16;
    }
    for (; most > 1 && tiles > 0; tiles--) {
        product_i8_block(tile, tile_bytes, pairs, ahead, rows, row_stride, out, out_stride, count, 1);
        tile += tile_bytes;
        ahead += tile_bytes;
        out += 16;
    }
}

/* tile:  [tiles], tile_bytes apart: [steps/2][16][2] int8, of which `pairs` (even) pairs of steps are read
 * ahead: the same extent of bytes, which the caller will need soon
 * rows:  [count] rows of int16, row_stride apart, indexed by step
 * out:   [count] rows of int32, out_stride apart, 16 per tile written */
static void product_i8(const int8_t *tile, int64_t tile_bytes, int tiles, int pairs, const int8_t *ahead,
                        const int16_t *rows, int64_t row_stride, int32_t *out, int64_t out_stride, int count)
{
    for (; count >= ROW_BLOCK; count -= ROW_BLOCK) {
        product_i8_rows(tile, tile_bytes, tiles, pairs, ahead, rows, row_stride, out, out_stride, ROW_BLOCK);
        rows += ROW_BLOCK * row_stride;
        out += ROW_BLOCK * out_stride;
        ahead = tile; /* once is enough */
    }
    switch (count) {
        FEWER_ROWS(product_i8_rows, tile, tile_bytes, tiles, pairs, ahead, rows, row_stride, out, out_stride)
    default: break;
    }
}

/* float32 sums are taken in runs of FLOAT_RUN steps, each run from zero: rounding grows with the run and
 * the number of runs, not with their product. */
#define FLOAT_RUN 16

ALWAYS void product_f32_block(const float *tile, int64_t tile_cells, int steps, const float *ahead,
                              const float *rows, int64_t row_stride, float *out, int64_t out_stride,
                              const int count, const int tiles)
{
    const int parts = tiles * PARTS;
    for (int start = 0; start < steps; start += FLOAT_RUN) {
        int end = steps - start < FLOAT_RUN ? steps : start + FLOAT_RUN;
        vf acc[ROW_BLOCK][TILES_MAX * PARTS];
#pragma GCC unroll 8
        for (int r = 0; r < count; r++)
#pragma GCC unroll 16
            for (int part = 0; part < parts; part++)
                acc[r][part] = vf_set(0.0f);
        for (int i = start; i < end; i++) {
            vf values[TILES_MAX * PARTS];
#pragma GCC unroll 4
            for (int t = 0; t < tiles; t++)
                PREFETCH(ahead + tile_cells * t + 16 * i);
#pragma GCC unroll 16
            for (int part = 0; part < parts; part++)
                values[part] = vf_load(tile + tile_cells * (part / PARTS) + 16 * i + LANES * (part % PARTS));
#pragma GCC unroll 8
            for (int r = 0; r < count; r++) {
                vf weight = vf_set(rows[r * row_stride + i]);
#pragma GCC unroll 16
                for (int part = 0; part < parts; part++)
                    acc[r][part] = vf_fma(values[part], weight, acc[r][part]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < count; r++)
#pragma GCC unroll 16
            for (int part = 0; part < parts; part++) {
                float *at = out + r * out_stride + LANES * part;
                vf_store(at, start ? vf_add(vf_load(at), acc[r][part]) : acc[r][part]);
            }
    }
}

ALWAYS void product_f32_rows(const float *tile, int64_t tile_cells, int tiles, int steps,
                             const float *ahead, const float *rows, int64_t row_stride, float *out,
                             int64_t out_stride, const int count)
{
    const int most = TILES_FOR(count);
    for (; tiles >= most; tiles -= most) {
        product_f32_block(tile, tile_cells, steps, ahead, rows, row_stride, out, out_stride, count, most);
        tile += most * tile_cells;
        ahead += most * tile_cells;
        out += most * 16;
    }
    for (; most > 1 && tiles > 0; tiles--) {
        product_f32_block(tile, tile_cells, steps, ahead, rows, row_stride, out, out_stride, count, 1);
        tile += tile_cells;
        ahead += tile_cells;
        out += 16;
    }
}

/* tile:  [tiles], tile_cells apart: [steps][16] float32; it begins at a multiple of FLOAT_RUN steps of its
 *        page, so that where a sum is cut depends on the slot alone
 * the rest as above, in float32 */
static void product_f32(const float *tile, int64_t tile_cells, int tiles, int steps, const float *ahead,
                        const float *rows, int64_t row_stride, float *out, int64_t out_stride, int count)
{
    for (; count >= ROW_BLOCK; count -= ROW_BLOCK) {
        product_f32_rows(tile, tile_cells, tiles, steps, ahead, rows, row_stride, out, out_stride, ROW_BLOCK);
        rows += ROW_BLOCK * row_stride;
        out += ROW_BLOCK * out_stride;
        ahead = tile; /* once is enough */
    }
    switch (count) {
        FEWER_ROWS(product_f32_rows, tile, tile_cells, tiles, steps, ahead, rows, row_stride, out, out_stride)
    default: break;
    }
}

#endif
