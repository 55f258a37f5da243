/* Vector primitives: the only code that differs between instruction sets.
 *
 * A kernel is written against LANES-wide vectors and compiled once per tier; the compiler's own macros,
 * set by that tier's flags, choose the file below. The types:
 *   vf  LANES float32        vi  LANES int32        vc  LANES groups of stored codes, as the multiply wants them
 * Sixteen lanes are the unit of every stored tile; PARTS vectors hold them.
 *
 * Rows: the numbers that stored codes are multiplied with are int16 of magnitude at most ROW_LIMIT, and
 * row_store puts LANES of them, from index `at` on, into a row of `steps` (2 · steps bytes) in the order that
 * the tier's multiply reads: every four as 0 2 1 3, or, with ROW_PLANES, all high bytes and then all low
 * bytes, both signed (x = 256 · high + low).
 *
 * Rules that must stay true: conversions to integer round half to even; vf_hsum adds in one fixed tree;
 * vf_fma is the only place where a multiply and an add may fuse (the build sets -ffp-contract=off).
 */
#ifndef RONDEL_SIMD_H
#define RONDEL_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__)
#include "simd_avx2.h"
#elif defined(__SSE2__)
#include "simd_sse2.h"
#elif defined(__aarch64__)
#include "simd_neon.h"
#else
#error "no vector primitives for this processor: SSE2 or AArch64 NEON is the least"
#endif

#define PARTS (16 / LANES)
#define ROW_LIMIT 32639 /* the largest whose high byte is 127 */


#define EXP2_C1 0x1.62e43p-1f
#define EXP2_C2 0x1.ebfbdcp-3f
#define EXP2_C3 0x1.c6aee8p-5f
#define EXP2_C4 0x1.3b2d4cp-7f
#define EXP2_C5 0x1.5f3e54p-10f
#define EXP2_C6 0x1.41fbbap-13f

/* 2^x for x <= 127, zero below -126. Relative error under 1e-7: a degree-6 minimax polynomial of 2^f on
 * [-1/2, 1/2], then the exponent by integer addition. Minus infinity gives exactly zero. Adding 1.5 · 2^23 rounds
 * to a whole number and leaves it in the low bits; what that makes of numbers below -126 is thrown away. */
static inline vf vf_exp2(vf x)
{
    const vf to_whole = vf_set(0x1.8p23f);
    vf whole = vf_add(x, to_whole);
    vf f = vf_sub(x, vf_sub(whole, to_whole));
    vf y = vf_set(EXP2_C6);
    y = vf_fma(y, f, vf_set(EXP2_C5));
    y = vf_fma(y, f, vf_set(EXP2_C4));
    y = vf_fma(y, f, vf_set(EXP2_C3));
    y = vf_fma(y, f, vf_set(EXP2_C2));
    y = vf_fma(y, f, vf_set(EXP2_C1));
    y = vf_fma(y, f, vf_set(1.0f));
    return vf_zero_below(vf_scale_by_power(y, vi_bits(whole)), x, vf_set(-126.0f));
}

/* 2^x for x <= 127, next to nothing below -126, relative error under 5e-7 (degree 5): for weights that are rounded to
 * 2^-16 afterwards. */
#ifndef VF_EXP2_SHORT
static inline vf vf_exp2_short(vf x)
{
    x = vf_max(x, vf_set(-126.0f));
    const vf to_whole = vf_set(0x1.8p23f);
    vf whole = vf_add(x, to_whole);
    vf f = vf_sub(x, vf_sub(whole, to_whole));
    vf y = vf_set(0x1.23a604p-10f);
    y = vf_fma(y, f, vf_set(0x1.3cbea8p-7f));
    y = vf_fma(y, f, vf_set(0x1.c74322p-5f));
    y = vf_fma(y, f, vf_set(0x1.ebfa4ep-3f));
    y = vf_fma(y, f, vf_set(0x1.62e39ep-1f));
    y = vf_fma(y, f, vf_set(1.0f));
    return vf_scale_by_power(y, vi_bits(whole));
}
#endif

/* tanh(x), relative error under 3e-7: a polynomial below 0.625 (after Cephes' tanhf), 1 - 2 / (e^2x + 1) above. */
static inline vf vf_tanh(vf x)
{
    const vf one = vf_set(1.0f);
    vf size = vf_abs(x), square = vf_mul(x, x);
    vf y = vf_set(-5.70498872745e-3f);
    y = vf_fma(y, square, vf_set(2.06390887954e-2f));
    y = vf_fma(y, square, vf_set(-5.37397155531e-2f));
    y = vf_fma(y, square, vf_set(1.33314422036e-1f));
    y = vf_fma(y, square, vf_set(-3.33332819422e-1f));
    y = vf_fma(vf_mul(y, square), x, x);
    vf bounded = vf_max(vf_min(x, vf_set(10.0f)), vf_set(-10.0f));
    vf power = vf_exp2(vf_mul(bounded, vf_set(2.885390081777927f)));
    vf large = vf_sub(one, vf_div(vf_set(2.0f), vf_add(power, one)));
    /* One of the two is zero; infinities must not meet it. */
    y = vf_zero_below(y, vf_sub(vf_set(0.0f), size), vf_set(-0.625f));
    return vf_add(y, vf_zero_below(large, size, vf_set(0x1.400002p-1f)));
}

/* vf_exp2 of one number, to the same bits. */
static inline float exp2_one(float x)
{
    float lanes[LANES];
    vf_store(lanes, vf_exp2(vf_set(x)));
    return lanes[0];
}

#endif
