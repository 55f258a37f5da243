/* Every primitive of simd.h against scalar code, bit for bit where the header promises bits. Built once per
 * instruction set with that tier's flags; prints the first fault of each kind and ends with status 1 if there
 * was any.
 *
 *     cc -O2 -ffp-contract=off <tier flags> -I decoder/kernels tests/native/primitives.c -lm
 *
 * All buffers are used at odd addresses, and have guard bytes where something is written.
 */
#include "checks.h"

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
        vf_store(out, vf_min(x, y));
        for (int i = 0; i < LANES; i++)
            expect(out[i] == fminf(a[i], b[i]), "vf_min", out[i], fminf(a[i], b[i]));
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

        int8_t *bytes = place(4, 1);
        memset(space[4], GUARD, sizeof space[4]);
        vi_store_i8(bytes, x);
        for (int i = 0; i < LANES; i++)
            expect(bytes[i] == clamp(whole[i], -128, 127), "vi_store_i8", bytes[i], whole[i]);
        expect(bytes[-1] == GUARD && bytes[LANES] == GUARD, "vi_store_i8 beyond its end", 1, 0);

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

/* Groups of LANES numbers, stored one by one at every place of a row; all numbers that a row may hold. */
static void check_row_store(void)
{
    enum { STEPS = 64 };
    int32_t *numbers = place(0, 4);
    int8_t *row = place(1, 1);
    for (int first = -ROW_LIMIT; first <= ROW_LIMIT; first += LANES)
        for (int at = 0; at < STEPS; at += LANES) {
            memset(space[1], GUARD, sizeof space[1]);
            for (int i = 0; i < LANES; i++)
                numbers[i] = clamp(first + i, -ROW_LIMIT, ROW_LIMIT);
            row_store(row, STEPS, at, vi_load(numbers));
            for (int step = -16; step < STEPS + 16; step++) {
                int inside = step >= at && step < at + LANES;
#ifdef ROW_PLANES
                int high = row[step], low = row[STEPS + step];
                int want = inside ? numbers[step - at] : 257 * GUARD;
                if (step >= 0 && step < STEPS) /* outside, the planes are neighbours */
                    expect(256 * high + low == want, "row_store", 256 * high + low, want);
                else if (step < 0)
                    expect(high == GUARD, "row_store before the row", high, GUARD);
                else
                    expect(low == GUARD, "row_store beyond the row", low, GUARD);
#else
                static const int order[] = {0, 2, 1, 3};
                int16_t got;
                memcpy(&got, row + 2 * ((step & ~3) + order[step & 3]), 2);
                int want = inside ? numbers[step - at] : 257 * GUARD;
                expect(got == want, "row_store", got, want);
#endif
            }
        }
}

/* What the multiply makes of four steps of every lane. */
static void check_dot(void)
{
    int8_t *codes = place(0, 1), *row = place(1, 1);
    int32_t *acc = place(2, 4), *out = place(3, 4), *steps = place(4, 4);
    for (int round = 0; round < 50000; round++) {
        int extreme = round % 3 == 0;
        for (int i = 0; i < 4 * LANES; i++)
            codes[i] = extreme ? draw() % 2 ? 127 : -127 : (int8_t)draw();
        for (int i = 0; i < LANES; i++) {
            steps[i] = extreme ? draw() % 2 ? ROW_LIMIT : -ROW_LIMIT : between(-ROW_LIMIT, ROW_LIMIT);
            acc[i] = between(-1000000, 1000000);
        }
        row_store(row, 16, 0, vi_load(steps)); /* of these, the first four */
#ifdef ROW_PLANES
        vi high = vi_dot(vi_zero(), vc_load(codes), vc_quad(row));
        vi low = vi_dot(vi_load(acc), vc_load(codes), vc_quad(row + 16));
        vi_store(out, vi_combine(high, low));
        int beyond = 128 * (256 * sum_bytes(row, 4) + sum_bytes(row + 16, 4));
#else
        vi even = vi_dot(vi_load(acc), vc_even(codes), vc_pair(row));
        vi_store(out, vi_dot(even, vc_odd(codes), vc_pair(row + 4)));
        int beyond = 0;
#endif
        for (int i = 0; i < LANES; i++) {
            int want = acc[i] + beyond;
            for (int step = 0; step < 4; step++)
                want += codes[4 * i + step] * steps[step];
            expect(out[i] == want, "vi_dot", out[i], want);
        }
    }
}

#ifdef ROW_PLANES
static void check_planes(void)
{
    int8_t *bytes = place(0, 1);
    int32_t *out = place(1, 4);
    for (int round = 0; round < 200; round++)
        for (int count = 0; count <= 300; count++) {
            int want = 0;
            for (int i = 0; i < count + 64; i++)
                bytes[i] = round == 0 ? -128 : round == 1 ? 127 : (int8_t)draw();
            for (int i = 0; i < count; i++)
                want += bytes[i];
            expect(sum_bytes(bytes, count) == want, "sum_bytes", sum_bytes(bytes, count), want);
        }
    for (int round = 0; round < 1000; round++) {
        int high = between(-4000000, 4000000), low = between(-4000000, 4000000);
        vi_store(out, vi_combine(vi_set(high), vi_set(low)));
        for (int i = 0; i < LANES; i++)
            expect(out[i] == 256 * high + low, "vi_set, vi_combine", out[i], 256.0 * high + low);
    }
}
#endif

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

int main(void)
{
    check_floats();
    check_special_floats();
    check_integers();
    check_row_store();
    check_dot();
#ifdef ROW_PLANES
    check_planes();
#endif
    check_exp2();
    return report();
}
