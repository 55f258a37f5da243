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

/* Registers: 0 and 1 accumulate, 2 has 64 steps of A, 3 the rest, 4 and 5 have 64 steps of B, 6 and 7 the rest.
 * Loading shapes takes some 70 ns, so what does not change is left. */
ALWAYS void shape_tiles(ProductState *state, int rows, int rest)
{
    if (state->rows == rows && (rest == 0 || state->rest == rest))
        return;
    state->rows = rows;
    state->rest = rest ? rest : 64;
    TileShapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        int is_rest = i == 3 || i >= 6;
        shapes.rows[i] = i < 4 ? rows : is_rest ? state->rest / 4 : 16;
        shapes.row_bytes[i] = i == 3 ? state->rest : 64;
    }
    _tile_loadconfig(&shapes);
}

/* The unit goes to sleep some 300 ns after its last multiplication and takes as long to wake. Something
 * meaningless for it to do, in a register that the next product clears, keeps it up through a long softmax. */
static inline void product_awake(const ProductState *state)
{
    if (state->rows)
        _tile_dpbssd(0, 2, 4);
}

static inline void product_begin(ProductState *state) { state->rows = state->rest = 0; }
/* Unused tile registers must not be saved at every switch of threads. */
static inline void product_end(ProductState *state)
{
    if (state->rows)
        _tile_release();
}

ALWAYS void product_amx_tiles(const int8_t *tile, int64_t tile_bytes, int steps,
                              const int8_t *rows, int64_t row_steps, int32_t *out, int64_t out_stride,
                              int count, const int tiles)
{
    int32_t sums[2][16][16] __attribute__((aligned(64)));
    const int8_t *second = tile + (tiles - 1) * tile_bytes;
    int at = 0;
    _tile_zero(0);
    _tile_zero(1);
    for (; at + 64 <= steps; at += 64) {
        _tile_loadd(2, rows + at, row_steps);
        _tile_stream_loadd(4, tile + 16 * at, 64);
        _tile_dpbssd(0, 2, 4);
        if (tiles == 2) {
            _tile_stream_loadd(5, second + 16 * at, 64);
            _tile_dpbssd(1, 2, 5);
        }
    }
    if (at < steps) {
        _tile_loadd(3, rows + at, row_steps);
        _tile_stream_loadd(6, tile + 16 * at, 64);
        _tile_dpbssd(0, 3, 6);
        if (tiles == 2) {
            _tile_stream_loadd(7, second + 16 * at, 64);
            _tile_dpbssd(1, 3, 7);
        }
    }
    _tile_stored(0, sums[0], 64);
    if (tiles == 2)
        _tile_stored(1, sums[1], 64);
    for (int r = 0; r < count; r++)
        for (int t = 0; t < tiles; t++)
            vi_store(out + r * out_stride + 16 * t,
                     vi_combine(vi_load(sums[t][2 * r]), vi_load(sums[t][2 * r + 1])));
}

ALWAYS void product_i8_rows(const int8_t *tile, int64_t tile_bytes, int tiles, int steps, const int8_t *rows,
                            int64_t row_steps, int32_t *out, int64_t out_stride, int count,
                            ProductState *state)
{
    shape_tiles(state, 2 * count, steps % 64);
    for (; tiles >= 2; tiles -= 2) {
        product_amx_tiles(tile, tile_bytes, steps, rows, row_steps, out, out_stride, count, 2);
        tile += 2 * tile_bytes;
        out += 32;
    }
    if (tiles)
        product_amx_tiles(tile, tile_bytes, steps, rows, row_steps, out, out_stride, count, 1);
}

/* As in tiles.h; nothing is fetched ahead, since the processor's own prefetching keeps up with tile loads and
 * software's on top of it only costs. The loads' hint keeps the page from pushing the rows out of the first-level
 * cache. */
static void product_i8(const int8_t *tile, int64_t tile_bytes, int tiles, int steps, const int8_t *ahead,
                       const int8_t *rows, int64_t row_steps, int32_t *out, int64_t out_stride, int count,
                       ProductState *state)
{
    (void)ahead;
    for (; count > 0; count -= ROW_BLOCK) {
        int some = count < ROW_BLOCK ? count : ROW_BLOCK;
        product_i8_rows(tile, tile_bytes, tiles, steps, rows, row_steps, out, out_stride, some, state);
        rows += some * 2 * row_steps;
        out += some * out_stride;
    }
}

#endif
