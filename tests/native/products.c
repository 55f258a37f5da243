/* The products of tiles.h against scalar code: int8 exactly, float32 to the bit. Built as primitives.c is.
 *
 * Every number of rows and tiles that meets all register blocks and what they leave over, and every shape of
 * the matrix unit's last tile, in an order that changes all of them from call to call: what a thread keeps
 * between products (ProductState) must not reach the next. Tiles lie at odd addresses, between bytes that
 * would show in a sum.
 */
#include "checks.h"

#ifdef __AMX_INT8__
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { MOST_ROWS = 17, MOST_TILES = 9, MOST_STEPS = 1024, GAP = 64, OUT = MOST_TILES * 16 + 8 };

static int8_t codes_space[MOST_TILES * (MOST_STEPS * 16 + GAP) + 1];
static float floats_space[MOST_TILES * (MOST_STEPS * 16 + GAP) + 1];
static int8_t words_space[MOST_ROWS * 2 * (MOST_STEPS + 64) + 1];
static float rows_space[MOST_ROWS * (MOST_STEPS + 8)];
static int32_t numbers[MOST_ROWS][MOST_STEPS + 64];
static int32_t sums[MOST_ROWS * OUT + 16];
static float totals[MOST_ROWS * OUT + 16];

/* Whether what lies between and beyond the rows of an output is as it was. */
static void expect_untouched(const void *out, int count, int tiles, int out_stride, const char *what)
{
    const int32_t *words = out;
    for (int r = 0; r < count; r++)
        for (int i = tiles * 16; i < out_stride; i++)
            expect(words[r * out_stride + i] == 0x01010101 * GUARD, what, r, i);
    for (int i = count * out_stride; i < count * out_stride + 16; i++)
        expect(words[i] == 0x01010101 * GUARD, what, count, i);
}

/* Rows of `row_steps` numbers, zero between first + steps and the next 16 as tiles.h asks, and never zero
 * elsewhere. kind: 0 any numbers, 1 the largest of both signs, 2 the largest of one sign. */
static void draw_rows(int8_t *words, int count, int first, int steps, int row_steps, int kind)
{
    int most = steps <= 512 ? ROW_LIMIT : ROW_LIMIT / 2;
    for (int r = 0; r < count; r++) {
        for (int i = 0; i < row_steps; i++) {
            int size = kind ? most : between(1, most);
            numbers[r][i] = (kind < 2 ? between(0, 1) : r % 2) ? size : -size;
        }
        for (int i = first + steps; i < ((first + steps + 15) & ~15); i++)
            numbers[r][i] = 0;
        for (int i = 0; i < row_steps; i += LANES)
            row_store(words + r * 2 * row_steps, row_steps, i, vi_load(numbers[r] + i));
    }
}

static void check_i8(ProductState *state, int count, int tiles, int steps, int kind)
{
    int first = 16 * between(0, 2);
    int row_steps = ((first + steps + 15) & ~15) + 16 * between(0, 1);
    int tile_bytes = steps * 16 + between(0, 1) * GAP;
    int out_stride = between(tiles * 16, OUT);
    int8_t *codes = codes_space + 1, *words = words_space + 1;
    for (int i = 0; i < tiles * tile_bytes; i++)
        codes[i] = kind == 0 ? between(-127, 127) : kind == 1 ? draw() % 2 ? 127 : -127 : 127;
    draw_rows(words, count, first, steps, row_steps, kind);
    memset(sums, GUARD, sizeof sums);
    Ahead ahead;
    ahead_begin(&ahead, (const char *)codes, tile_bytes, 100);
    product_i8(codes, tile_bytes, tiles, steps, &ahead, words + ROW_STEP_BYTES * first, row_steps, sums,
               out_stride, count, state);
    for (int r = 0; r < count; r++)
        for (int t = 0; t < tiles; t++)
            for (int lane = 0; lane < 16; lane++) {
                const int8_t *at = codes + t * tile_bytes + 4 * lane;
                const int32_t *row = numbers[r] + first;
                int32_t want = 0; /* cannot overflow: the limits of a row are made so */
                for (int step = 0; step < steps; step += 4)
                    for (int i = 0; i < 4; i++)
                        want += at[16 * step + i] * row[step + i];
                int32_t got = sums[r * out_stride + 16 * t + lane];
                expect(got == want, "product_i8", got, want);
            }
    expect_untouched(sums, count, tiles, out_stride, "product_i8 beyond its output, row and column");
}

static void check_f32(int count, int tiles, int steps)
{
    int tile_cells = steps * 16 + between(0, 1) * GAP;
    int stride = steps + between(0, 8), out_stride = between(tiles * 16, OUT);
    float *floats = floats_space + 1, *rows = rows_space;
    for (int i = 0; i < tiles * tile_cells; i++)
        floats[i] = number();
    for (int i = 0; i < count * stride; i++)
        rows[i] = number();
    memset(totals, GUARD, sizeof totals);
    Ahead ahead;
    ahead_begin(&ahead, (const char *)floats, 4 * tile_cells, 100);
    product_f32(floats, tile_cells, tiles, steps, &ahead, rows, stride, totals, out_stride, count);
    for (int r = 0; r < count; r++)
        for (int t = 0; t < tiles; t++) {
            float want[16];
            for (int start = 0; start < steps; start += FLOAT_RUN) {
                float run[16] = {0};
                for (int step = start; step < start + FLOAT_RUN && step < steps; step++)
                    for (int lane = 0; lane < 16; lane++)
                        run[lane] = fused(floats[t * tile_cells + step * 16 + lane], rows[r * stride + step],
                                          run[lane]);
                for (int lane = 0; lane < 16; lane++)
                    want[lane] = start ? want[lane] + run[lane] : run[lane];
            }
            for (int lane = 0; lane < 16; lane++)
                expect_bits(totals[r * out_stride + 16 * t + lane], want[lane], "product_f32");
        }
    expect_untouched(totals, count, tiles, out_stride, "product_f32 beyond its output, row and column");
}

static void check_every_shape(void)
{
    static const int steps_i8[] = {8, 16, 24, 64, 72, 80, 128, 256, 1024};
    static const int steps_f32[] = {1, 8, 15, 16, 17, 64, 80, 128, 256};
    enum { ROWS = MOST_ROWS + 1, TILES = MOST_TILES + 1, SHAPES = ROWS * TILES * 9 };
    ProductState state;
    product_begin(&state);
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < SHAPES; i++) {
            int shape = i * 997 % SHAPES; /* 997 has no factor of SHAPES: every shape comes, far from its kin */
            int count = shape % ROWS, tiles = shape / ROWS % TILES, at = shape / ROWS / TILES;
            check_i8(&state, count, tiles, steps_i8[at], kind);
            if (kind == 0)
                check_f32(count, tiles, steps_f32[at]);
            if (draw() % 16 == 0) {
                product_end(&state);
                product_begin(&state);
            }
        }
    check_f32(5, 3, 1024);
    product_end(&state);
}

/* Shapes of the matrix unit that differ in one thing only, one after the other, both ways. */
static void check_neighbouring_shapes(void)
{
    ProductState state;
    product_begin(&state);
    for (int steps = 8; steps <= 144; steps += 8)
        for (int other = 8; other <= 144; other += 8) {
            check_i8(&state, 3, 2, steps, 0);
            check_i8(&state, 3, 3, other, 0);
            check_i8(&state, 4, 1, other, 0);
        }
    product_end(&state);
}

/* The largest sums that the kernels allow: 512 channels of full units, 1,024 of half, and 128 slots. */
static void check_largest_sums(void)
{
    ProductState state;
    product_begin(&state);
    check_i8(&state, 9, 5, 128, 2);
    check_i8(&state, 9, 5, 512, 2);
    expect(labs((long)sums[0]) == 512L * 127 * 32639, "largest sum of 512 steps", sums[0], 512.0 * 127 * 32639);
    check_i8(&state, 9, 5, 1024, 2);
    expect(labs((long)sums[0]) == 1024L * 127 * 16319, "largest sum of 1,024 steps", sums[0],
           1024.0 * 127 * 16319);
    product_end(&state);
}

#ifdef __AMX_INT8__
/* Whether this thread's tile registers would be saved at a switch: bit 18 of what XGETBV says is in use. */
static int tiles_in_use(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
    return low >> 18 & 1;
}

static void check_release(void)
{
    ProductState state;
    product_begin(&state);
    product_end(&state);
    expect(!tiles_in_use(), "tiles in use without a product", 1, 0);
    product_begin(&state);
    check_i8(&state, 4, 2, 64, 0);
    expect(tiles_in_use(), "tiles in use during products", 0, 1);
    product_end(&state);
    expect(!tiles_in_use(), "tiles in use after product_end", 1, 0);
}
#endif

int main(void)
{
#ifdef __AMX_INT8__
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) != 0) {
        fprintf(stderr, "Linux refuses the matrix unit\n");
        return 1;
    }
    check_release();
#endif
    check_every_shape();
    check_neighbouring_shapes();
    check_largest_sums();
    return report();
}
