/* The vector primitives of simd.h for AVX-512 (F, BW, DQ, VL), with VNNI if the flags say so. */
#ifndef RONDEL_SIMD_AVX512_H
#define RONDEL_SIMD_AVX512_H

#include <immintrin.h>
#define LANES 16
typedef __m512 vf;
typedef __m512i vi;

static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf vf_set(float x) { return _mm512_set1_ps(x); }
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
/* 1 / x to within a unit in the last place or two: an estimate and a Newton step, for a long division's time. */
static inline vf vf_reciprocal(vf x)
{
    vf guess = _mm512_rcp14_ps(x);
    return _mm512_fmadd_ps(guess, _mm512_fnmadd_ps(x, guess, _mm512_set1_ps(1.0f)), guess);
}
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_abs(vf a) { return _mm512_abs_ps(a); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline float vf_hmax(vf a) { return _mm512_reduce_max_ps(a); }
static inline float vf_hsum(vf a) { return _mm512_reduce_add_ps(a); }
static inline vf vf_from_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
/* x in lanes whose index (first + lane) is in [lo, hi), other elsewhere */
static inline vf vf_within(vf x, int first, int lo, int hi, vf other)
{
    uint32_t upto = hi <= first ? 0 : hi - first >= LANES ? 0xffff : (1u << (hi - first)) - 1;
    uint32_t below = lo <= first ? 0 : lo - first >= LANES ? 0xffff : (1u << (lo - first)) - 1;
    return _mm512_mask_blend_ps((__mmask16)(upto & ~below), other, x);
}
/* x where key >= limit, 0 elsewhere */
static inline vf vf_zero_below(vf x, vf key, vf limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(key, limit, _CMP_GE_OQ), x);
}
static inline int vf_all_at_most(vf x, vf limit)
{
    return _mm512_cmp_ps_mask(x, limit, _CMP_LE_OQ) == 0xffff;
}
static inline vi vi_zero(void) { return _mm512_setzero_si512(); }
static inline vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
static inline void vi_store(int32_t *p, vi a) { _mm512_storeu_si512(p, a); }
static inline vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
static inline vi vi_round(vf x) { return _mm512_cvtps_epi32(x); }
static inline vi vi_bits(vf a) { return _mm512_castps_si512(a); }
static inline vf vf_from_vi(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vf vf_from_i32(const int32_t *p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
static inline void vi_store_i8(int8_t *p, vi a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtsepi32_epi8(a)); }
static inline vf vf_scale_by_power(vf x, vi n)
{
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(n, 23)));
}
/* As in simd.h, a third shorter: one instruction takes x - floor(x), another multiplies by 2^floor(x), whatever x is. On
 * [0, 1] a polynomial of degree 5 that is exact at 0 has a relative error under 2e-7. */
#define VF_EXP2_SHORT
static inline vf vf_exp2_short(vf x)
{
    vf f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf y = vf_set(0x1.e974fap-10f);
    y = vf_fma(y, f, vf_set(0x1.277856p-7f));
    y = vf_fma(y, f, vf_set(0x1.c91ce6p-5f));
    y = vf_fma(y, f, vf_set(0x1.ebdb56p-3f));
    y = vf_fma(y, f, vf_set(0x1.62e4bap-1f));
    y = vf_fma(y, f, vf_set(1.0f));
    return _mm512_scalef_ps(y, x);
}

#if defined(__AVX512VNNI__)
#define ROW_PLANES
typedef __m512i vc;
/* Codes + 128: the multiply takes unsigned by signed bytes. */
static inline vc vc_load(const int8_t *p) { return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128)); }
static inline vc vc_quad(const int8_t *p)
{
    int32_t quad;
    memcpy(&quad, p, 4);
    return _mm512_set1_epi32(quad);
}
static inline vi vi_dot(vi acc, vc codes, vc quad) { __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(codes), "v"(quad)); return acc; }
static inline vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi vi_combine(vi high, vi low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low); }
/* The sum of `count` bytes. */
static inline int32_t sum_bytes(const int8_t *p, int64_t count)
{
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < count; i += 64) {
        __mmask64 inside = count - i >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << (count - i)) - 1;
        sum = _mm512_dpbusd_epi32(sum, ones, _mm512_maskz_loadu_epi8(inside, p + i));
    }
    return _mm512_reduce_add_epi32(sum);
}
static inline void row_store(int8_t *row, int64_t steps, int64_t at, vi x)
{
    __m512i high = _mm512_srai_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128((__m128i *)(row + at), _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128((__m128i *)(row + steps + at), _mm512_cvtepi32_epi8(x));
}
/* Four of them at once, from `at` on: a third fewer instructions. */
#define ROW_STORE_4
static inline void row_store_4(int8_t *row, int64_t steps, int64_t at, const vi x[4])
{
    const __m512i half = _mm512_set1_epi16(128), order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i first = _mm512_packs_epi32(x[0], x[1]), second = _mm512_packs_epi32(x[2], x[3]);
    __m512i high = _mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(first, half), 8),
                                      _mm512_srai_epi16(_mm512_add_epi16(second, half), 8));
    __m512i low = _mm512_packs_epi16(_mm512_srai_epi16(_mm512_slli_epi16(first, 8), 8),
                                     _mm512_srai_epi16(_mm512_slli_epi16(second, 8), 8));
    _mm512_storeu_si512(row + at, _mm512_permutexvar_epi32(order, high));
    _mm512_storeu_si512(row + steps + at, _mm512_permutexvar_epi32(order, low));
}
#else
typedef __m512i vc;
static inline vc vc_even(const int8_t *p)
{
    return _mm512_srai_epi16(_mm512_slli_epi16(_mm512_loadu_si512(p), 8), 8);
}
static inline vc vc_odd(const int8_t *p) { return _mm512_srai_epi16(_mm512_loadu_si512(p), 8); }
static inline vc vc_pair(const int8_t *p)
{
    int32_t pair;
    memcpy(&pair, p, 4);
    return _mm512_set1_epi32(pair);
}
static inline vi vi_dot(vi acc, vc codes, vc pair)
{
    return _mm512_add_epi32(acc, _mm512_madd_epi16(codes, pair));
}
static inline void row_store(int8_t *row, int64_t steps, int64_t at, vi x)
{
    __m256i words = _mm512_cvtsepi32_epi16(x);
    words = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
    _mm256_storeu_si256((__m256i *)(row + 2 * at), words);
}
#endif

#endif
