/* int8 products on Intel's matrix unit (AMX-INT8); included by tiles.h.
 *
 * A stored tile's [steps/4][16][4] is what the unit calls a B tile, 64 steps at a time. Rows lie as two signed
 * planes, so row_steps is the stride of an A tile that has high, low, high, low, …; twice ROW_BLOCK is all that
 * a tile register holds. Arithmetic is signed by signed and exact. */
#ifndef RONDEL_TILES_AMX_H
#define RONDEL_TILES_AMX_H

#define ROW_STEP_BYTES 1

/* Shapes of the tile registers in force: rows of A, and steps of the last, incomplete B tile. */
typedef struct {
    int rows, rest;
} ProductState;

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileShapes;

/* Registers: 0 accumulates, 1 has 64 steps of A and 2 of B, 3 has the rest of A and 4 of B; of 128 steps 5 has the
 * second half of A. Loading shapes takes some 70 ns, so what does not change is left. */
ALWAYS void shape_tiles(ProductState *state, int rows, int rest)
{
    if (state->rows == rows && (rest == 0 || state->rest == rest))
        return;
    state->rows = rows;
    state->rest = rest ? rest : 64;
    TileShapes shapes = {.palette = 1};
    for (int i = 0; i < 6; i++) {
        shapes.rows[i] = i == 2 ? 16 : i == 4 ? state->rest / 4 : rows;
        shapes.row_bytes[i] = i == 3 ? state->rest : 64;
    }
    _tile_loadconfig(&shapes);
}

/* The unit goes to sleep some 300 ns after its last multiplication and takes as long to wake. Something
 * meaningless for it to do, in a register that the next product clears, keeps it up through a long softmax. */
static inline void product_awake(const ProductState *state)
{
    if (state->rows)
        _tile_dpbssd(0, 1, 2);
}

static inline void product_begin(ProductState *state) { state->rows = state->rest = 0; }
/* Unused tile registers must not be saved at every switch of threads. */
static inline void product_end(ProductState *state)
{
    if (state->rows)
        _tile_release();
}

/* The accumulator to one tile's part of the rows' results. */
ALWAYS void put_together(int32_t *out, int64_t out_stride, int count)
{
    int32_t sums[16][16] __attribute__((aligned(64)));
    _tile_stored(0, sums, 64);
    for (int r = 0; r < count; r++)
        vi_store(out + r * out_stride, vi_combine(vi_load(sums[2 * r]), vi_load(sums[2 * r + 1])));
}

/* One tile at a time: two, sharing the loads of A, were no faster. The loads' hint keeps the page from pushing the
 * rows out of the first-level cache. */
ALWAYS void product_amx_tile(const int8_t *tile, int steps, Ahead *ahead, const int8_t *rows, int64_t row_steps,
                             int32_t *out, int64_t out_stride, int count)
{
    int at = 0;
    _tile_zero(0);
    for (; at + 64 <= steps; at += 64) {
        ahead_step(ahead, KILOBYTE_TICKS);
        _tile_loadd(1, rows + at, row_steps);
        _tile_stream_loadd(2, tile + 16 * at, 64);
        _tile_dpbssd(0, 1, 2);
    }
    if (at < steps) {
        _tile_loadd(3, rows + at, row_steps);
        _tile_stream_loadd(4, tile + 16 * at, 64);
        _tile_dpbssd(0, 3, 4);
    }
    put_together(out, out_stride, count);
}

/* 128 steps, as all values have and most keys: the rows stay in their registers. */
ALWAYS void product_amx_128(const int8_t *tile, int64_t tile_bytes, int tiles, Ahead *ahead, const int8_t *rows,
                            int64_t row_steps, int32_t *out, int64_t out_stride, int count)
{
    _tile_loadd(1, rows, row_steps);
    _tile_loadd(5, rows + 64, row_steps);
    for (int t = 0; t < tiles; t++, tile += tile_bytes, out += 16) {
        _tile_zero(0);
        ahead_step(ahead, KILOBYTE_TICKS);
        _tile_stream_loadd(2, tile, 64);
        _tile_dpbssd(0, 1, 2);
        ahead_step(ahead, KILOBYTE_TICKS);
        _tile_stream_loadd(2, tile + 1024, 64);
        _tile_dpbssd(0, 5, 2);
        put_together(out, out_stride, count);
    }
}

/* As in tiles.h. */
static void product_i8(const int8_t *tile, int64_t tile_bytes, int tiles, int steps, Ahead *ahead,
                       const int8_t *rows, int64_t row_steps, int32_t *out, int64_t out_stride, int count,
                       ProductState *state)
{
    for (; count > 0; count -= ROW_BLOCK) {
        int some = count < ROW_BLOCK ? count : ROW_BLOCK;
        shape_tiles(state, 2 * some, steps % 64);
        if (steps == 128)
            product_amx_128(tile, tile_bytes, tiles, ahead, rows, row_steps, out, out_stride, some);
        else
            for (int t = 0; t < tiles; t++)
                product_amx_tile(tile + t * tile_bytes, steps, ahead, rows, row_steps, out + 16 * t, out_stride, some);
        rows += some * 2 * row_steps;
        out += some * out_stride;
    }
}

#endif
