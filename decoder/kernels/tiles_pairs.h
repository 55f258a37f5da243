/* int8 products where the multiply takes pairs of int16 (SSE2, AVX2, AVX-512BW, NEON); included by tiles.h.
 *
 * Of the four steps that a lane has in a register, the even ones are sign-extended with two shifts and the
 * odd ones with one, and each two are multiplied with the row's numbers of the same steps. */
#ifndef RONDEL_TILES_PAIRS_H
#define RONDEL_TILES_PAIRS_H

#define ROW_STEP_BYTES 2

/* Accumulators begin at zero. */
typedef struct {
    int unused;
} RowStarts;
ALWAYS void start_rows(RowStarts *starts, const int8_t *rows, int64_t row_steps, int steps, const int count)
{
    (void)starts, (void)rows, (void)row_steps, (void)steps, (void)count;
}

/* `count` rows with `tiles` tiles, tile_bytes apart; both constants after inlining. */
ALWAYS void product_i8_block(const int8_t *tile, int64_t tile_bytes, int steps, Ahead *ahead,
                             const int8_t *rows, int64_t row_steps, const RowStarts *starts, int32_t *out,
                             int64_t out_stride, const int count, const int tiles)
{
    (void)starts;
    const int parts = tiles * PARTS;
    vi acc[ROW_BLOCK][TILES_MAX * PARTS];
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
#pragma GCC unroll 16
        for (int part = 0; part < parts; part++)
            acc[r][part] = vi_zero();
    /* One pointer per tile and per row, one offset for all: anything else costs scalar work per load. */
    const int8_t *tile_at[TILES_MAX], *row_at[ROW_BLOCK];
#pragma GCC unroll 4
    for (int t = 0; t < tiles; t++)
        tile_at[t] = tile + tile_bytes * t;
#pragma GCC unroll 8
    for (int r = 0; r < count; r++)
        row_at[r] = rows + 2 * row_steps * r;
    for (int64_t at = 0; at < 2 * (int64_t)steps; at += 8) {
        ahead_step(ahead, tiles * LINE_TICKS(count));
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; odd++) {
            vc codes[TILES_MAX * PARTS];
#pragma GCC unroll 16
            for (int part = 0; part < parts; part++) {
                const int8_t *four = tile_at[part / PARTS] + 8 * at + 4 * LANES * (part % PARTS);
                codes[part] = odd ? vc_odd(four) : vc_even(four);
            }
#pragma GCC unroll 8
            for (int r = 0; r < count; r++) {
                vc pair = vc_pair(row_at[r] + at + 4 * odd);
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

#endif
