/* int8 products where the multiply takes four unsigned by four signed bytes (AVX-512 VNNI); included by
 * tiles.h.
 *
 * Codes go in as code + 128, which costs one exclusive or for 64 of them, and rows as two signed planes; what
 * the 128 adds is the plane's sum of bytes times 128, so the accumulators begin there. Nothing saturates. */
#ifndef RONDEL_TILES_PLANES_H
#define RONDEL_TILES_PLANES_H

#define ROW_STEP_BYTES 1

/* Where the accumulators of each row begin: high plane, low plane. */
typedef struct {
    int32_t high[ROW_BLOCK], low[ROW_BLOCK];
} RowStarts;

ALWAYS void start_rows(RowStarts *starts, const int8_t *rows, int64_t row_steps, int steps, const int count)
{
    for (int r = 0; r < count; r++) {
        starts->high[r] = -128 * sum_bytes(rows + 2 * row_steps * r, steps);
        starts->low[r] = -128 * sum_bytes(rows + 2 * row_steps * r + row_steps, steps);
    }
}

ALWAYS void product_i8_block(const int8_t *tile, int64_t tile_bytes, int steps, Ahead *ahead,
                             const int8_t *rows, int64_t row_steps, const RowStarts *starts, int32_t *out,
                             int64_t out_stride, const int count, const int tiles)
{
    vi high[ROW_BLOCK][TILES_MAX], low[ROW_BLOCK][TILES_MAX];
    const int8_t *tile_at[TILES_MAX], *high_at[ROW_BLOCK], *low_at[ROW_BLOCK];
#pragma GCC unroll 8
    for (int r = 0; r < count; r++) {
        high_at[r] = rows + 2 * row_steps * r;
        low_at[r] = high_at[r] + row_steps;
#pragma GCC unroll 4
        for (int t = 0; t < tiles; t++) {
            high[r][t] = vi_set(starts->high[r]);
            low[r][t] = vi_set(starts->low[r]);
        }
    }
#pragma GCC unroll 4
    for (int t = 0; t < tiles; t++)
        tile_at[t] = tile + tile_bytes * t;
    for (int64_t at = 0; at < steps; at += 4) {
        vc codes[TILES_MAX];
        ahead_step(ahead, tiles * LINE_TICKS(count));
#pragma GCC unroll 4
        for (int t = 0; t < tiles; t++) {
            codes[t] = vc_load(tile_at[t] + 16 * at);
        }
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) {
            vc quad = vc_quad(high_at[r] + at);
#pragma GCC unroll 4
            for (int t = 0; t < tiles; t++)
                high[r][t] = vi_dot(high[r][t], codes[t], quad);
            quad = vc_quad(low_at[r] + at);
#pragma GCC unroll 4
            for (int t = 0; t < tiles; t++)
                low[r][t] = vi_dot(low[r][t], codes[t], quad);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
#pragma GCC unroll 4
        for (int t = 0; t < tiles; t++)
            vi_store(out + r * out_stride + 16 * t, vi_combine(high[r][t], low[r][t]));
}

#endif
