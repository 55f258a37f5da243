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

/* Rows in registers at once. */
#if LANES == 16
#define ROW_BLOCK 8
#elif LANES == 8
#define ROW_BLOCK 4
#else
#define ROW_BLOCK 2
#endif

ALWAYS void product_i8_rows(const int8_t *tile, int pairs, const int16_t *rows, int64_t row_stride,
                            int32_t *out, int64_t out_stride, const int count)
{
    vi acc[ROW_BLOCK][PARTS];
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++)
            acc[r][part] = vi_zero();
#pragma GCC unroll 4
    for (int i = 0; i < pairs; i++) {
        vc codes[PARTS];
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++)
            codes[part] = vc_load(tile + 32 * i + 2 * LANES * part);
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) {
            vc pair = vc_pair(rows + r * row_stride + 2 * i);
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++)
                acc[r][part] = vi_dot(acc[r][part], codes[part], pair);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++)
            vi_store(out + r * out_stride + LANES * part, acc[r][part]);
}

/* tile:  [steps/2][16][2] int8, only steps [2*first_pair, 2*(first_pair+pairs)) read
 * rows:  [count] rows of int16, row_stride apart, indexed by step
 * out:   [count] rows of int32, out_stride apart, 16 written */
ALWAYS void product_i8(const int8_t *tile, int first_pair, int pairs, const int16_t *rows, int64_t row_stride,
                       int32_t *out, int64_t out_stride, int count)
{
    tile += 32 * (int64_t)first_pair;
    rows += 2 * (int64_t)first_pair;
    for (; count >= ROW_BLOCK; count -= ROW_BLOCK) {
        product_i8_rows(tile, pairs, rows, row_stride, out, out_stride, ROW_BLOCK);
        rows += ROW_BLOCK * row_stride;
        out += ROW_BLOCK * out_stride;
    }
    switch (count) {
    case 1: product_i8_rows(tile, pairs, rows, row_stride, out, out_stride, 1); break;
#if ROW_BLOCK > 2
    case 2: product_i8_rows(tile, pairs, rows, row_stride, out, out_stride, 2); break;
    case 3: product_i8_rows(tile, pairs, rows, row_stride, out, out_stride, 3); break;
#endif
#if ROW_BLOCK > 4
    case 4: product_i8_rows(tile, pairs, rows, row_stride, out, out_stride, 4); break;
    case 5: product_i8_rows(tile, pairs, rows, row_stride, out, out_stride, 5); break;
    case 6: product_i8_rows(tile, pairs, rows, row_stride, out, out_stride, 6); break;
    case 7: product_i8_rows(tile, pairs, rows, row_stride, out, out_stride, 7); break;
#endif
    default: break;
    }
}

/* float32 sums are taken in runs of FLOAT_RUN steps, each run from zero: rounding grows with the run and
 * the number of runs, not with their product. */
#define FLOAT_RUN 16

ALWAYS void product_f32_rows(const float *tile, int steps, const float *rows, int64_t row_stride, float *out,
                             int64_t out_stride, const int count)
{
    vf total[ROW_BLOCK][PARTS];
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++)
            total[r][part] = vf_set(0.0f);
    for (int start = 0; start < steps; start += FLOAT_RUN) {
        int end = steps - start < FLOAT_RUN ? steps : start + FLOAT_RUN;
        vf acc[ROW_BLOCK][PARTS];
#pragma GCC unroll 8
        for (int r = 0; r < count; r++)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++)
                acc[r][part] = vf_set(0.0f);
        for (int i = start; i < end; i++) {
            vf values[PARTS];
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++)
                values[part] = vf_load(tile + 16 * i + LANES * part);
#pragma GCC unroll 8
            for (int r = 0; r < count; r++) {
                vf weight = vf_set(rows[r * row_stride + i]);
#pragma GCC unroll 4
                for (int part = 0; part < PARTS; part++)
                    acc[r][part] = vf_fma(values[part], weight, acc[r][part]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < count; r++)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++)
                total[r][part] = vf_add(total[r][part], acc[r][part]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++)
            vf_store(out + r * out_stride + LANES * part, total[r][part]);
}

/* tile:  [steps][16] float32, only steps [first, first+steps) read; first a multiple of FLOAT_RUN, so that
 *        where a sum is cut depends on the slot alone
 * rows:  [count] rows of float32, row_stride apart, indexed by step
 * out:   [count] rows of float32, out_stride apart, 16 written */
ALWAYS void product_f32(const float *tile, int first, int steps, const float *rows, int64_t row_stride,
                        float *out, int64_t out_stride, int count)
{
    tile += 16 * (int64_t)first;
    rows += first;
    for (; count >= ROW_BLOCK; count -= ROW_BLOCK) {
        product_f32_rows(tile, steps, rows, row_stride, out, out_stride, ROW_BLOCK);
        rows += ROW_BLOCK * row_stride;
        out += ROW_BLOCK * out_stride;
    }
    switch (count) {
    case 1: product_f32_rows(tile, steps, rows, row_stride, out, out_stride, 1); break;
#if ROW_BLOCK > 2
    case 2: product_f32_rows(tile, steps, rows, row_stride, out, out_stride, 2); break;
    case 3: product_f32_rows(tile, steps, rows, row_stride, out, out_stride, 3); break;
#endif
#if ROW_BLOCK > 4
    case 4: product_f32_rows(tile, steps, rows, row_stride, out, out_stride, 4); break;
    case 5: product_f32_rows(tile, steps, rows, row_stride, out, out_stride, 5); break;
    case 6: product_f32_rows(tile, steps, rows, row_stride, out, out_stride, 6); break;
    case 7: product_f32_rows(tile, steps, rows, row_stride, out, out_stride, 7); break;
#endif
    default: break;
    }
}

#endif
