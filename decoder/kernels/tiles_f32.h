/* Products of float32 tiles with a block of rows; included by tiles.h, which says what a tile is. */
#ifndef RONDEL_TILES_F32_H
#define RONDEL_TILES_F32_H

/* float32 sums are taken in runs of FLOAT_RUN steps, each run from zero: rounding grows with the run and
 * the number of runs, not with their product. */
#define FLOAT_RUN 16

ALWAYS void product_f32_block(const float *tile, int64_t tile_cells, int steps, Ahead *ahead,
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
            ahead_step(ahead, tiles * LINE_TICKS(count));
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
                             Ahead *ahead, const float *rows, int64_t row_stride, float *out,
                             int64_t out_stride, const int count)
{
    const int most = TILES_FOR(count);
    for (; tiles >= most; tiles -= most) {
        product_f32_block(tile, tile_cells, steps, ahead, rows, row_stride, out, out_stride, count, most);
        tile += most * tile_cells;
        out += most * 16;
    }
    for (; most > 1 && tiles > 0; tiles--) {
        product_f32_block(tile, tile_cells, steps, ahead, rows, row_stride, out, out_stride, count, 1);
        tile += tile_cells;
        out += 16;
    }
}

/* tile:  [tiles], tile_cells apart: [steps][16] float32; it begins at a multiple of FLOAT_RUN steps of its
 *        page, so that where a sum is cut depends on the slot alone
 * the rest as above, in float32 */
static void product_f32(const float *tile, int64_t tile_cells, int tiles, int steps, Ahead *ahead,
                        const float *rows, int64_t row_stride, float *out, int64_t out_stride, int count)
{
    for (; count >= ROW_BLOCK; count -= ROW_BLOCK) {
        product_f32_rows(tile, tile_cells, tiles, steps, ahead, rows, row_stride, out, out_stride, ROW_BLOCK);
        rows += ROW_BLOCK * row_stride;
        out += ROW_BLOCK * out_stride;
    }
    switch (count) {
        FEWER_ROWS(product_f32_rows, tile, tile_cells, tiles, steps, ahead, rows, row_stride, out, out_stride)
    default: break;
    }
}

#endif
