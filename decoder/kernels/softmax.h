/* The softmax of one row over a whole int8 page: what softmax.pxi does slot by slot, for the case that makes up
 * nearly all of the work, with the page's scores in registers where there are enough.
 *
 * A row takes this way exactly where it sees all of a page, so which way it takes depends on the row alone.
 */
#ifndef RONDEL_SOFTMAX_H
#define RONDEL_SOFTMAX_H

#include "tiles.h"

#ifndef FETCH
#define FETCH PREFETCH
#endif
#define PAGE_SLOTS 128
#define PAGE_VECTORS (PAGE_SLOTS / LANES)

/* Per page and range of visible slots, for all rows that see the same. */
typedef struct {
    float units[PAGE_SLOTS]; /* value scales in weight units, zero where not visible */
    float back[PAGE_SLOTS];  /* what one unit is as a weight, where the scale is near the largest; else 0 */
    float own[PAGE_SLOTS];   /* 1 where it is not; else 0 */
    float largest;           /* of the scales */
    int mixed;               /* whether `own` has ones */
} ValueWeights;

/* What is asked for while the arithmetic goes on: `bytes` per vector, from `at` on. */
typedef struct {
    const char *at;
    int64_t bytes;
} Ahead;

ALWAYS void fetch_step(const Ahead *ahead, int vector)
{
    for (int64_t i = 0; i < ahead->bytes; i += 64)
        FETCH(ahead->at + vector * ahead->bytes + i);
}

/* products, key_scales [PAGE_SLOTS] -> weights: rounded to units, as a row. most: the largest score, in units of
 * log2. Returns the sum of 2^(score - most), as far as possible of what the rounded weights are. `mixed`: some
 * scales are not near the largest. */
ALWAYS float weigh_page(const int32_t *products, const float *key_scales, float row_scale, const ValueWeights *w,
                        int8_t *weights, float *most, const Ahead *ahead, const int mixed)
{
    const vf scale = vf_set(row_scale), least = vf_set(-126.0f);
    vf score[PAGE_VECTORS], largest[PAGE_VECTORS / 2];
    vi whole[PAGE_VECTORS];
#pragma GCC unroll 32
    for (int i = 0; i < PAGE_VECTORS; i++)
        score[i] = vf_mul(vf_from_i32(products + LANES * i), vf_load(key_scales + LANES * i));
#pragma GCC unroll 16
    for (int i = 0; i < PAGE_VECTORS / 2; i++)
        largest[i] = vf_max(score[i], score[i + PAGE_VECTORS / 2]);
#pragma GCC unroll 4
    for (int half = PAGE_VECTORS / 4; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++)
            largest[i] = vf_max(largest[i], largest[i + half]);
    *most = vf_hmax(largest[0]) * row_scale;
    const vf below = vf_set(-*most);
    /* Several sums, so that none waits for the other. */
    vf rounded[2] = {vf_set(0.0f), vf_set(0.0f)}, exact[2] = {vf_set(0.0f), vf_set(0.0f)};
#pragma GCC unroll 32
    for (int i = 0; i < PAGE_VECTORS; i++) {
        fetch_step(ahead, i);
        vf e = vf_exp2_short(vf_max(vf_fma(score[i], scale, below), least));
        whole[i] = vi_round(vf_mul(e, vf_load(w->units + LANES * i)));
        rounded[i % 2] = vf_fma(vf_from_vi(whole[i]), vf_load(w->back + LANES * i), rounded[i % 2]);
        if (mixed)
            exact[i % 2] = vf_fma(e, vf_load(w->own + LANES * i), exact[i % 2]);
    }
#ifdef ROW_STORE_4
    for (int i = 0; i < PAGE_VECTORS; i += 4)
        row_store_4(weights, PAGE_SLOTS, LANES * i, whole + i);
#else
#pragma GCC unroll 32
    for (int i = 0; i < PAGE_VECTORS; i++)
        row_store(weights, PAGE_SLOTS, LANES * i, whole[i]);
#endif
    return vf_hsum(vf_add(vf_add(rounded[0], rounded[1]), vf_add(exact[0], exact[1])));
}

static float weigh_whole_page(const int32_t *products, const float *key_scales, float row_scale,
                              const ValueWeights *w, int8_t *weights, float *most, const Ahead *ahead)
{
    return w->mixed ? weigh_page(products, key_scales, row_scale, w, weights, most, ahead, 1)
                    : weigh_page(products, key_scales, row_scale, w, weights, most, ahead, 0);
}

#endif
