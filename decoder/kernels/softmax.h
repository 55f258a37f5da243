/* The softmax of one row over a whole int8 page: what softmax.pxi does slot by slot, for the case that makes up
 * nearly all of the work, with the page's scores in registers where there are enough.
 *
 * A row takes this way exactly where it sees all of a page, so which way it takes depends on the row alone.
 */
#ifndef RONDEL_SOFTMAX_H
#define RONDEL_SOFTMAX_H

#include <float.h>

#include "tiles.h"

#define PAGE_SLOTS 128
#define QUERY_FINE_UNITS 32768
#define PAGE_VECTORS (PAGE_SLOTS / LANES)

/* What a page's scales say to all rows that see the same slots of it: [lo, hi). */
typedef struct {
    int lo, hi;
    float key[PAGE_SLOTS];   /* key scales */
    float units[PAGE_SLOTS]; /* value scales in weight units, zero where not visible */
    float back[PAGE_SLOTS];  /* what one unit is as a weight, where the scale is near the largest; else 0 */
    float own[PAGE_SLOTS];   /* 1 where it is not; else 0 */
    float largest_key;       /* of the visible key scales */
    float largest_value;     /* of the visible value scales */
    int mixed;               /* whether `own` has ones */
} PageScales;

/* keys, values [PAGE_SLOTS] bfloat16, none of them zero. Slots [start, end), multiples of LANES, are touched.
 * scores [PAGE_SLOTS], or NULL: slots where it is -inf are hidden as well. */
ALWAYS void load_scales_of(const uint16_t *keys, const uint16_t *values, int lo, int hi, int start, int end,
                           const float *scores, PageScales *s, Ahead *ahead, const int whole)
{
    const vf zero = vf_set(0.0f), one = vf_set(1.0f), half = vf_set((float)ROW_LIMIT / 2);
    vf largest_key = zero, largest_value = zero, far = zero;
    s->lo = lo;
    s->hi = hi;
    for (int t = start; t < end; t += LANES) {
        ahead_step(ahead, VECTOR_TICKS);
        vf key = vf_from_bf16(keys + t), value = vf_from_bf16(values + t);
        vf_store(s->key + t, key);
        if (scores)
            value = vf_zero_below(value, vf_load(scores + t), vf_set(-FLT_MAX));
        vf_store(s->units + t, whole ? value : vf_within(value, t, lo, hi, zero));
        largest_key = vf_max(largest_key, whole ? key : vf_within(key, t, lo, hi, zero));
        largest_value = vf_max(largest_value, vf_load(s->units + t));
    }
    s->largest_key = vf_hmax(largest_key);
    s->largest_value = vf_hmax(largest_value);
    const vf to_units = vf_set((float)ROW_LIMIT / s->largest_value);
    for (int t = start; t < end; t += LANES) {
        ahead_step(ahead, VECTOR_TICKS);
        vf units = vf_mul(vf_load(s->units + t), to_units);
        vf near = vf_zero_below(one, units, half);
        vf_store(s->units + t, units);
        vf_store(s->own + t, vf_sub(one, near));
        vf_store(s->back + t, vf_mul(near, vf_reciprocal(vf_max(units, half))));
        far = vf_max(far, vf_sub(one, near));
    }
    s->mixed = vf_hmax(far) > 0;
}

static void load_scales(const uint16_t *keys, const uint16_t *values, int lo, int hi, int start, int end,
                        const float *scores, PageScales *s, Ahead *ahead)
{
    if (lo == 0 && hi == PAGE_SLOTS && !scores)
        load_scales_of(keys, values, 0, PAGE_SLOTS, 0, PAGE_SLOTS, 0, s, ahead, 1);
    else
        load_scales_of(keys, values, lo, hi, start, end, scores, s, ahead, 0);
}

/* products (and with `fine` fine_products, in 1/QUERY_FINE_UNITS) [PAGE_SLOTS] -> weights: rounded to units, as a row. offset is added to the
 * scores, which are in units of log2; most: the largest. Returns the sum of 2^(score - most), as far as possible of what the rounded weights are. `mixed`: some
 * scales are not near the largest. */
ALWAYS float weigh_page(const int32_t *products, const int32_t *fine_products, float row_scale, float offset,
                        const PageScales *scales, int8_t *weights, float *most, Ahead *ahead,
                        const int mixed, const int fine)
{
    const vf scale = vf_set(row_scale), shift = vf_set(offset);
    vf score[PAGE_VECTORS], largest[PAGE_VECTORS / 2];
    vi whole[PAGE_VECTORS];
#pragma GCC unroll 32
    for (int i = 0; i < PAGE_VECTORS; i++) {
        score[i] = vf_from_i32(products + LANES * i);
        if (fine)
            score[i] = vf_fma(vf_from_i32(fine_products + LANES * i), vf_set(1.0f / QUERY_FINE_UNITS), score[i]);
        score[i] = vf_fma(vf_mul(score[i], vf_load(scales->key + LANES * i)), scale, shift);
    }
#pragma GCC unroll 16
    for (int i = 0; i < PAGE_VECTORS / 2; i++)
        largest[i] = vf_max(score[i], score[i + PAGE_VECTORS / 2]);
#pragma GCC unroll 4
    for (int half = PAGE_VECTORS / 4; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++)
            largest[i] = vf_max(largest[i], largest[i + half]);
    *most = vf_hmax(largest[0]);
    const vf top = vf_set(*most);
    /* Several sums, so that none waits for the other. */
    vf rounded[2] = {vf_set(0.0f), vf_set(0.0f)}, exact[2] = {vf_set(0.0f), vf_set(0.0f)};
#pragma GCC unroll 32
    for (int i = 0; i < PAGE_VECTORS; i++) {
        ahead_step(ahead, VECTOR_TICKS);
        vf e = vf_exp2_short(vf_sub(score[i], top));
        whole[i] = vi_round(vf_mul(e, vf_load(scales->units + LANES * i)));
        rounded[i % 2] = vf_fma(vf_from_vi(whole[i]), vf_load(scales->back + LANES * i), rounded[i % 2]);
        if (mixed)
            exact[i % 2] = vf_fma(e, vf_load(scales->own + LANES * i), exact[i % 2]);
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

static float weigh_whole_page(const int32_t *products, const int32_t *fine_products, float row_scale, float offset,
                              const PageScales *scales, int8_t *weights, float *most, Ahead *ahead)
{
    if (fine_products)
        return weigh_page(products, fine_products, row_scale, offset, scales, weights, most, ahead, 1, 1);
    if (scales->mixed)
        return weigh_page(products, 0, row_scale, offset, scales, weights, most, ahead, 1, 0);
    return weigh_page(products, 0, row_scale, offset, scales, weights, most, ahead, 0, 0);
}

/* A row's weighted sums [channels] join what there is: acc · old + sums · unit. */
static void merge_sums(const int32_t *restrict sums, float unit, float old, float *restrict acc, int channels,
                       Ahead *ahead)
{
    const vf units = vf_set(unit), factor = vf_set(old);
    for (int c = 0; c < channels; c += LANES) {
        ahead_step(ahead, VECTOR_TICKS);
        vf_store(acc + c, vf_fma(vf_from_i32(sums + c), units, vf_mul(vf_load(acc + c), factor)));
    }
}

#endif
