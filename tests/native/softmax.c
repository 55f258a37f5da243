/* The functions of one number and the softmax of a whole page against scalar double arithmetic. */
#ifdef __AMX_INT8__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "checks.h"
#include "softmax.h"

static void check_functions(void)
{
    double worst[3] = {0, 0, 0};
    float x[LANES], y[LANES];
    for (int round = 0; round < 20000; round++) {
        for (int i = 0; i < LANES; i++)
            x[i] = ldexpf((float)between(-1 << 23, 1 << 23), -23) * (round % 2 ? 126.0f : 1.0f);
        vf_store(y, vf_exp2_short(vf_load(x)));
        for (int i = 0; i < LANES; i++)
            worst[0] = fmax(worst[0], fabs(y[i] / exp2(x[i]) - 1));
        vf_store(y, vf_exp2_short(vf_mul(vf_load(x), vf_set(-1e30f))));
        for (int i = 0; i < LANES; i++)
            if (x[i] > 0)
                expect(y[i] >= 0 && y[i] < 2e-38, "vf_exp2_short of very little", y[i], 0);
        vf_store(y, vf_exp2_short(vf_set(0.0f)));
        expect(y[0] == 1, "vf_exp2_short(0)", y[0], 1);
        vf_store(y, vf_tanh(vf_load(x)));
        for (int i = 0; i < LANES; i++)
            worst[1] = fmax(worst[1], x[i] == 0 ? fabs(y[i]) : fabs(y[i] / tanh(x[i]) - 1));
        for (int i = 0; i < LANES; i++)
            x[i] = ldexpf((float)between(1 << 22, 1 << 23), between(-60, 60));
        vf_store(y, vf_reciprocal(vf_load(x)));
        for (int i = 0; i < LANES; i++)
            worst[2] = fmax(worst[2], fabs((double)y[i] * x[i] - 1));
    }
    expect(worst[0] < 5e-7, "vf_exp2_short, relative error", worst[0], 5e-7);
    expect(worst[1] < 5e-7, "vf_tanh, relative error", worst[1], 5e-7);
    expect(worst[2] < 3e-7, "vf_reciprocal, relative error", worst[2], 3e-7);
    for (int i = 0; i < LANES; i++)
        x[i] = i % 2 ? INFINITY : -INFINITY;
    vf_store(y, vf_tanh(vf_load(x)));
    for (int i = 0; i < LANES; i++)
        expect(y[i] == (i % 2 ? 1.0f : -1.0f), "vf_tanh of infinity", y[i], i % 2 ? 1 : -1);
}

#ifdef ROW_STORE_4
static void check_row_store_4(void)
{
    int8_t one[512], four[512];
    for (int round = 0; round < 2000; round++) {
        int32_t numbers[4][LANES];
        vi x[4];
        for (int j = 0; j < 4; j++) {
            for (int i = 0; i < LANES; i++)
                numbers[j][i] = between(-ROW_LIMIT, ROW_LIMIT);
            x[j] = vi_load(numbers[j]);
        }
        memset(one, GUARD, sizeof one);
        memset(four, GUARD, sizeof four);
        int at = 64 * between(0, 1);
        for (int j = 0; j < 4; j++)
            row_store(one, PAGE_SLOTS, at + LANES * j, x[j]);
        row_store_4(four, PAGE_SLOTS, at, x);
        expect(memcmp(one, four, sizeof one) == 0, "row_store_4 against row_store", round, round);
    }
}
#endif

static uint16_t bf16_of(float x) { return (uint16_t)(bits_of(x) >> 16); }

/* A page whose value scales are alike, or not; with or without a second product. */
__attribute__((noinline)) static void check_page(int mixed, int fine)
{
    static int32_t products[PAGE_SLOTS], fine_products[PAGE_SLOTS];
    uint16_t keys[PAGE_SLOTS], values[PAGE_SLOTS];
    int8_t weights[2 * PAGE_SLOTS], expected[2 * PAGE_SLOTS];
    float most;
    PageScales scales;
    Ahead ahead;
    ahead_begin(&ahead, (const char *)products, sizeof products, 100);
    double score[PAGE_SLOTS], top = -INFINITY, sum = 0;
    const float row_scale = 3e-4f, offset = 1.75f;
    for (int t = 0; t < PAGE_SLOTS; t++) {
        keys[t] = bf16_of(0.01f + 0.0001f * (float)between(0, 100));
        values[t] = bf16_of(mixed && draw() % 2 ? 0.002f : 0.9f + 0.001f * (float)between(0, 100));
        products[t] = between(-2000000, 2000000);
        fine_products[t] = between(-40000000, 40000000);
        score[t] = products[t] + (fine ? fine_products[t] / (double)QUERY_FINE_UNITS : 0);
        score[t] = score[t] * float_of((uint32_t)keys[t] << 16) * row_scale + offset;
        if (score[t] > top)
            top = score[t];
    }
    load_scales(keys, values, 0, PAGE_SLOTS, 0, PAGE_SLOTS, 0, &scales, &ahead);
    expect(scales.mixed == mixed, "PageScales.mixed", scales.mixed, mixed);
    float got = weigh_whole_page(products, fine ? fine_products : 0, row_scale, offset, &scales, weights, &most, &ahead);
    expect(fabs(most - top) < 1e-5 * fmax(1, fabs(top)), "the page's largest score", most, top);
    int32_t whole[PAGE_SLOTS];
    for (int t = 0; t < PAGE_SLOTS; t++) {
        double e = exp2(score[t] - top);
        sum += e;
        whole[t] = (int32_t)lrint(e * scales.units[t]);
    }
    expect(fabs(got / sum - 1) < 1e-3, "the sum of weights", got, sum);
    for (int t = 0; t < PAGE_SLOTS; t += LANES)
        row_store(expected, PAGE_SLOTS, t, vi_load(whole + t));
    /* Read back by the product itself: a tile that has a one at one step and lane gives that weight. */
    static int8_t tile[PAGE_SLOTS * 16];
    int32_t out[16];
    ProductState state;
    product_begin(&state);
    for (int t = 0; t < PAGE_SLOTS; t++) {
        memset(tile, 0, sizeof tile);
        tile[64 * (t / 4) + t % 4] = 1;
        product_i8(tile, sizeof tile, 1, PAGE_SLOTS, &ahead, weights, PAGE_SLOTS, out, 16, 1, &state);
        expect(abs(out[0] - whole[t]) <= 1 + whole[t] / 10000, "a weight", out[0], whole[t]);
    }
    product_end(&state);
}

int main(void)
{
#ifdef __AMX_INT8__
    if (syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) != 0) {
        fprintf(stderr, "Linux refuses the matrix unit\n");
        return 1;
    }
#endif
    check_functions();
#ifdef ROW_STORE_4
    check_row_store_4();
#endif
    for (int round = 0; round < 50; round++)
        for (int mixed = 0; mixed < 2; mixed++)
            for (int fine = 0; fine < 2; fine++)
                check_page(mixed, fine);
    return report();
}
