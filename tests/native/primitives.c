/* Every primitive of simd.h and both products of tiles.h against scalar code, bit for bit where the headers
 * promise bits. Built once per instruction set with that tier's flags; prints the first fault of each kind
 * and ends with status 1 if there was any.
 *
 *     cc -O3 -ffp-contract=off -fno-math-errno <tier flags> -I decoder/kernels tests/native/primitives.c -lm
 *
 * All buffers are used at odd addresses, and have guard bytes where something is written.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tiles.h"

#if defined(__AVX512BW__) || (defined(__AVX2__) && defined(__FMA__)) || defined(__aarch64__)
#define FUSED 1
#else
#define FUSED 0
#endif

static int faults;
static long checks;

static void expect(int good, const char *what, double got, double want)
{
    static const char *last;
    checks++;
    if (good)
        return;
    faults++;
    if (what != last)
        fprintf(stderr, "FAULT %s: got %.9g, expected %.9g\n", what, got, want);
    last = what;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void expect_bits(float got, float want, const char *what)
{
    expect(bits_of(got) == bits_of(want) || (got != got && want != want), what, got, want);
}

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint32_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static int between(int low, int high) { return low + (int)(draw() % (uint32_t)(high - low + 1)); }

/* A finite float of any magnitude whose products and sums stay finite; zeros of both signs among them. */
static float number(void)
{
    switch (draw() % 16) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return float_of(draw() & 0x807fffffu); /* denormal */
    default: return float_of((draw() & 0x807fffffu) | ((uint32_t)between(127 - 40, 127 + 40) << 23));
    }
}

static float fused(float a, float b, float c)
{
#if FUSED
    return fmaf(a, b, c);
#else
    volatile float product = a * b; /* two roundings */
    return product + c;
#endif
}

#define EDGE 64
static char space[8][8192 + 2 * EDGE];

/* A buffer at an address that only its element size divides. */
static void *place(int which, size_t element) { return space[which] + EDGE + element; }

static void check_floats(void)
{
    float *a = place(0, 4), *b = place(1, 4), *c = place(2, 4), *out = place(3, 4);
    for (int round = 0; round < 20000; round++) {
        for (int i = 0; i < LANES; i++) {
            a[i] = number();
            b[i] = number();
            c[i] = number();
        }
        vf x = vf_load(a), y = vf_load(b), z = vf_load(c);
#define EACH(name, result, scalar)                                                                       \
    vf_store(out, result);                                                                               \
    for (int i = 0; i < LANES; i++)                                                                      \
        expect_bits(out[i], scalar, name);
        EACH("vf_load and vf_store", x, a[i])
        EACH("vf_set", vf_set(a[0]), a[0])
        EACH("vf_add", vf_add(x, y), a[i] + b[i])
        EACH("vf_sub", vf_sub(x, y), a[i] - b[i])
        EACH("vf_mul", vf_mul(x, y), a[i] * b[i])
        EACH("vf_abs", vf_abs(x), fabsf(a[i]))
        EACH("vf_fma", vf_fma(x, y, z), fused(a[i], b[i], c[i]))
        EACH("vf_zero_below", vf_zero_below(x, y, z), b[i] >= c[i] ? a[i] : 0.0f)
        vf_store(out, vf_max(x, y));
        for (int i = 0; i < LANES; i++) /* of two zeros either may come out */
            expect(out[i] == fmaxf(a[i], b[i]), "vf_max", out[i], fmaxf(a[i], b[i]));
        for (int i = 0; i < LANES; i++)
            if (b[i] == 0.0f)
                b[i] = 1.0f;
        EACH("vf_div", vf_div(x, vf_load(b)), a[i] / b[i])

        float most = a[0];
        for (int i = 1; i < LANES; i++)
            most = fmaxf(most, a[i]);
        expect(vf_hmax(x) == most, "vf_hmax", vf_hmax(x), most);

        /* One fixed tree: halves onto each other (x86-64), or neighbours (AArch64). */
        float halves[LANES], neighbours[LANES];
        memcpy(halves, a, sizeof halves);
        memcpy(neighbours, a, sizeof neighbours);
        for (int n = LANES / 2; n; n /= 2)
            for (int i = 0; i < n; i++) {
                halves[i] = halves[i] + halves[i + n];
                neighbours[i] = neighbours[2 * i] + neighbours[2 * i + 1];
            }
#if defined(__aarch64__)
        expect_bits(vf_hsum(x), neighbours[0], "vf_hsum");
#else
        expect_bits(vf_hsum(x), halves[0], "vf_hsum");
#endif
    }
}

static void check_special_floats(void)
{
    float *a = place(0, 4), *out = place(1, 4);
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < LANES; i++)
            a[i] = -1.0f;
        a[lane] = -INFINITY;
        expect(vf_hmax(vf_load(a)) == -1.0f, "vf_hmax with -inf", vf_hmax(vf_load(a)), -1.0);
        a[lane] = 2.0f;
        expect(vf_hmax(vf_load(a)) == 2.0f, "vf_hmax, each lane", vf_hmax(vf_load(a)), 2.0);
        expect(vf_all_at_most(vf_load(a), vf_set(2.0f)), "vf_all_at_most, equal", 0, 1);
        expect(!vf_all_at_most(vf_load(a), vf_set(1.9f)), "vf_all_at_most, above", 1, 0);
        a[lane] = NAN;
        expect(!vf_all_at_most(vf_load(a), vf_set(2.0f)), "vf_all_at_most, NaN", 1, 0);
        expect(!vf_all_at_most(vf_abs(vf_load(a)), vf_set(INFINITY)), "vf_all_at_most, |NaN|", 1, 0);
        a[lane] = INFINITY;
        expect(!vf_all_at_most(vf_load(a), vf_set(2.0f)), "vf_all_at_most, inf", 1, 0);
        a[lane] = -INFINITY;
        expect(!vf_all_at_most(vf_abs(vf_load(a)), vf_set(2.0f)), "vf_all_at_most, |-inf|", 1, 0);
        vf_store(out, vf_zero_below(vf_set(3.0f), vf_load(a), vf_set(-126.0f)));
        for (int i = 0; i < LANES; i++)
            expect(out[i] == (i == lane ? 0.0f : 3.0f), "vf_zero_below, -inf", out[i], 3.0);
    }
    for (int first = 0; first < 3 * LANES; first++)
        for (int lo = -1; lo <= 4 * LANES; lo++)
            for (int hi = -1; hi <= 4 * LANES; hi++) {
                vf_store(out, vf_within(vf_set(1.0f), first, lo, hi, vf_set(-INFINITY)));
                for (int i = 0; i < LANES; i++) {
                    float want = first + i >= lo && first + i < hi ? 1.0f : -INFINITY;
                    expect(out[i] == want, "vf_within", out[i], want);
                }
            }
    uint16_t *half = place(2, 2);
    for (uint32_t base = 0; base < 65536; base += LANES) {
        for (int i = 0; i < LANES; i++)
            half[i] = (uint16_t)(base + i);
        vf_store(out, vf_from_bf16(half));
        for (int i = 0; i < LANES; i++)
            expect_bits(out[i], float_of((base + i) << 16), "vf_from_bf16");
    }
}

static int clamp(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

static void check_integers(void)
{
    float *a = place(0, 4), *out = place(1, 4);
    int32_t *whole = place(2, 4);
    for (int round = 0; round < 20000; round++) {
        for (int i = 0; i < LANES; i++) {
            int n = between(-40000, 40000);
            static const float parts[] = {0.0f, 0.5f, -0.5f, 0.25f, 0.49999997f};
            a[i] = round % 2 ? (float)n + parts[draw() % 5] : (float)between(-300, 300) + parts[draw() % 5];
        }
        vi x = vi_round(vf_load(a));
        vi_store(whole, x);
        for (int i = 0; i < LANES; i++)
            expect(whole[i] == (int32_t)nearbyintf(a[i]), "vi_round", whole[i], nearbyintf(a[i]));
        vf_store(out, vf_from_vi(x));
        for (int i = 0; i < LANES; i++)
            expect(out[i] == (float)whole[i], "vf_from_vi", out[i], whole[i]);

        int16_t *words = place(3, 2);
        memset(space[3], 0x55, sizeof space[3]);
        vi_store_i16(words, x);
        for (int i = 0; i < LANES; i++)
            expect(words[i] == clamp(whole[i], -32768, 32767), "vi_store_i16", words[i], whole[i]);
        expect(words[-1] == 0x5555 && words[LANES] == 0x5555, "vi_store_i16 beyond its end", 1, 0);

        int8_t *bytes = place(4, 1);
        memset(space[4], 0x55, sizeof space[4]);
        vi_store_i8(bytes, x);
        for (int i = 0; i < LANES; i++)
            expect(bytes[i] == clamp(whole[i], -128, 127), "vi_store_i8", bytes[i], whole[i]);
        expect(bytes[-1] == 0x55 && bytes[LANES] == 0x55, "vi_store_i8 beyond its end", 1, 0);

        for (int i = 0; i < LANES; i++)
            whole[i] = (int32_t)draw() >> (draw() % 24);
        vf_store(out, vf_from_i32(whole));
        for (int i = 0; i < LANES; i++)
            expect(out[i] == (float)whole[i], "vf_from_i32", out[i], (float)whole[i]);

        for (int i = 0; i < LANES; i++)
            a[i] = (float)between(-60, 60);
        vf_store(out, vf_scale_by_power(vf_set(1.5f), vi_round(vf_load(a))));
        for (int i = 0; i < LANES; i++)
            expect_bits(out[i], ldexpf(1.5f, (int)a[i]), "vf_scale_by_power");
    }
    int32_t *other = place(5, 4), *both = place(6, 4);
    for (int i = 0; i < LANES; i++) {
        whole[i] = (int32_t)draw();
        other[i] = (int32_t)draw();
    }
    vi_store(both, vi_xor(vi_load(whole), vi_load(other)));
    for (int i = 0; i < LANES; i++)
        expect(both[i] == (whole[i] ^ other[i]), "vi_load, vi_xor", both[i], whole[i] ^ other[i]);
    vi_store(whole, vi_zero());
    for (int i = 0; i < LANES; i++)
        expect(whole[i] == 0, "vi_zero", whole[i], 0);
}

static void check_dot(void)
{
    int8_t *codes = place(0, 1);
    int16_t *pair = place(1, 2);
    int32_t *acc = place(2, 4), *out = place(3, 4);
    for (int round = 0; round < 50000; round++) {
        for (int i = 0; i < 2 * LANES; i++)
            codes[i] = round % 3 ? (int8_t)draw() : draw() % 2 ? 127 : -127;
        for (int i = 0; i < 2; i++)
            pair[i] = round % 3 ? (int16_t)draw() : draw() % 2 ? 32767 : -32767;
        vi start = vi_dot(vi_zero(), vc_load(codes), vc_pair(pair));
        vi_store(acc, start);
        vi_store(out, vi_dot(start, vc_load(codes), vc_pair(pair)));
        for (int i = 0; i < LANES; i++) {
            int64_t want = (int64_t)codes[2 * i] * pair[0] + (int64_t)codes[2 * i + 1] * pair[1];
            expect(acc[i] == want, "vi_dot from zero", acc[i], (double)want);
            expect(out[i] == 2 * want, "vi_dot", out[i], 2.0 * (double)want);
        }
    }
}

static void check_exp2(void)
{
    float *a = place(0, 4), *out = place(1, 4);
    double worst = 0;
    const int steps = 1 << 22;
    for (int at = 0; at < steps; at += LANES) {
        for (int i = 0; i < LANES; i++)
            a[i] = -126.0f + 190.0f * (float)(at + i) / (float)steps; /* the header says x <= 0; few_keys asks to 60 */
        vf_store(out, vf_exp2(vf_load(a)));
        for (int i = 0; i < LANES; i++) {
            double want = exp2((double)a[i]), error = fabs(out[i] - want) / want;
            if (error > worst)
                worst = error;
        }
        if (at % 4096 == 0)
            expect_bits(exp2_one(a[0]), out[0], "exp2_one against vf_exp2");
    }
    expect(worst < 1e-7, "vf_exp2, relative error", worst, 1e-7);
    for (int i = 0; i > -126; i--)
        expect_bits(exp2_one((float)i), ldexpf(1.0f, i), "exp2 of a whole number");
    expect_bits(exp2_one(-0.0f), 1.0f, "exp2 of -0");
    expect_bits(exp2_one(-INFINITY), 0.0f, "exp2 of -inf");
    expect_bits(exp2_one(-126.0f), 0x1p-126f, "exp2 of -126");
    expect_bits(exp2_one(nextafterf(-126.0f, -INFINITY)), 0.0f, "exp2 below -126");
    expect_bits(exp2_one(-3e38f), 0.0f, "exp2 of a large negative number");
    for (float x = -1e-10f; x > -1.0f; x *= 1.5f)
        expect(exp2_one(x) <= 1.0f + 0x1p-22f, "exp2 near 0", exp2_one(x), 1.0);
    printf("exp2: largest relative error %.3g\n", worst);
}

static void check_products(void)
{
    enum { STEPS = 64, ROWS = 40, TILES = 9, STRIDE = STEPS + 8, OUT = TILES * 16 + 8 };
    static int8_t codes_space[TILES * STEPS * 16 + 1];
    static float floats_space[TILES * STEPS * 16 + 1];
    static int16_t words_space[ROWS * STRIDE + 1];
    static float rows_space[ROWS * STRIDE + 1];
    static int32_t sums[ROWS * OUT + 16];
    static float totals[ROWS * OUT + 16];
    for (int round = 0; round < 3000; round++) {
        int count = between(0, ROWS), tiles = between(0, TILES);
        int stride = between(STEPS, STRIDE) & ~1, out_stride = between(tiles * 16, OUT);
        int extreme = round % 4 == 0;
        int8_t *codes = codes_space + 1;
        int16_t *words = words_space + 1;
        float *floats = floats_space + 1, *rows = rows_space + 1;
        for (int i = 0; i < TILES * STEPS * 16; i++) {
            codes[i] = extreme ? (draw() % 2 ? 127 : -127) : (int8_t)between(-127, 127);
            floats[i] = number();
        }
        for (int i = 0; i < ROWS * STRIDE; i++) {
            words[i] = extreme ? (draw() % 2 ? 32767 : -32767) : (int16_t)draw();
            rows[i] = number();
        }
        int pairs = 2 * between(1, STEPS / 4);
        memset(sums, 0x55, sizeof sums);
        product_i8(codes, STEPS * 16, tiles, pairs, codes, words, stride, sums, out_stride, count);
        memset(totals, 0x55, sizeof totals);
        int steps = between(1, STEPS);
        product_f32(floats, STEPS * 16, tiles, steps, floats, rows, stride, totals, out_stride, count);
        for (int r = 0; r < count; r++) {
            for (int i = 0; i < tiles * 16; i++) {
                int at = i / 16 * STEPS * 16, lane = i % 16;
                int64_t want = 0;
                for (int step = 0; step < 2 * pairs; step++)
                    want += codes[at + (step / 2 * 16 + lane) * 2 + step % 2] * words[r * stride + step];
                expect(sums[r * out_stride + i] == want, "product_i8", sums[r * out_stride + i], (double)want);

                float total = 0.0f;
                for (int start = 0; start < steps; start += FLOAT_RUN) {
                    float run = 0.0f;
                    for (int step = start; step < start + FLOAT_RUN && step < steps; step++)
                        run = fused(floats[at + step * 16 + lane], rows[r * stride + step], run);
                    total = start ? total + run : run;
                }
                expect_bits(totals[r * out_stride + i], total, "product_f32");
            }
            for (int i = tiles * 16; i < out_stride; i++) {
                expect(sums[r * out_stride + i] == 0x55555555, "product_i8 between rows", 1, 0);
                expect(bits_of(totals[r * out_stride + i]) == 0x55555555, "product_f32 between rows", 1, 0);
            }
        }
        for (int i = count * out_stride; i < count * out_stride + 16; i++) {
            expect(sums[i] == 0x55555555, "product_i8 beyond its end", 1, 0);
            expect(bits_of(totals[i]) == 0x55555555, "product_f32 beyond its end", 1, 0);
        }
    }
}

/* The largest sums that the kernels allow: 512 channels of full units, 1,024 of half, and 128 slots. */
static void check_largest_sums(void)
{
    static int8_t codes[1024 * 16];
    static int16_t row[1024];
    int32_t sums[16];
    for (int sign = -1; sign <= 1; sign += 2)
        for (int steps = 512; steps <= 1024; steps += 512) {
            int units = steps == 512 ? 32767 : 16384; /* 16,384: what is left of a query, in fine units */
            memset(codes, 127, sizeof codes);
            for (int i = 0; i < steps; i++)
                row[i] = (int16_t)(sign * units);
            product_i8(codes, 0, 1, steps / 2, codes, row, 0, sums, 16, 1);
            for (int lane = 0; lane < 16; lane++)
                expect(sums[lane] == sign * steps * 127 * units, "product_i8, largest sum", sums[lane],
                       (double)sign * steps * 127 * units);
        }
}

int main(void)
{
    check_floats();
    check_special_floats();
    check_integers();
    check_dot();
    check_exp2();
    check_products();
    check_largest_sums();
    printf("%d lanes, %s multiply-add: %ld checks, %d faults\n", LANES, FUSED ? "fused" : "separate", checks,
           faults);
    return faults != 0;
}
