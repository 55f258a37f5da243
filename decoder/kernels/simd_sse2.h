/* The vector primitives of simd.h for SSE2: every x86-64 processor. */
#ifndef RONDEL_SIMD_SSE2_H
#define RONDEL_SIMD_SSE2_H

#include <emmintrin.h>
#define LANES 4
typedef __m128 vf;
typedef __m128i vi;

static inline vf vf_load(const float *p) { return _mm_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm_storeu_ps(p, x); }
static inline vf vf_set(float x) { return _mm_set1_ps(x); }
static inline vf vf_add(vf a, vf b) { return _mm_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm_div_ps(a, b); }
static inline vf vf_reciprocal(vf x) { return _mm_div_ps(_mm_set1_ps(1.0f), x); }
static inline vf vf_max(vf a, vf b) { return _mm_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm_min_ps(a, b); }
static inline vf vf_abs(vf a) { return _mm_andnot_ps(_mm_set1_ps(-0.0f), a); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
static inline float vf_hmax(vf x)
{
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
static inline float vf_hsum(vf x)
{
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
static inline vf vf_from_bf16(const uint16_t *p)
{
    return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)p)));
}
static inline vf vf_within(vf x, int first, int lo, int hi, vf other)
{
    __m128i index = _mm_add_epi32(_mm_set1_epi32(first), _mm_setr_epi32(0, 1, 2, 3));
    __m128i outside = _mm_cmpgt_epi32(_mm_set1_epi32(lo), index);
    __m128 inside = _mm_castsi128_ps(_mm_andnot_si128(outside, _mm_cmpgt_epi32(_mm_set1_epi32(hi), index)));
    return _mm_or_ps(_mm_and_ps(inside, x), _mm_andnot_ps(inside, other));
}
static inline vf vf_zero_below(vf x, vf key, vf limit) { return _mm_and_ps(x, _mm_cmpge_ps(key, limit)); }
static inline int vf_all_at_most(vf x, vf limit) { return _mm_movemask_ps(_mm_cmple_ps(x, limit)) == 0xf; }
static inline vi vi_zero(void) { return _mm_setzero_si128(); }
static inline vi vi_load(const int32_t *p) { return _mm_loadu_si128((const __m128i *)p); }
static inline void vi_store(int32_t *p, vi a) { _mm_storeu_si128((__m128i *)p, a); }
static inline vi vi_xor(vi a, vi b) { return _mm_xor_si128(a, b); }
static inline vi vi_round(vf x) { return _mm_cvtps_epi32(x); }
static inline vi vi_bits(vf a) { return _mm_castps_si128(a); }
static inline vf vf_from_vi(vi a) { return _mm_cvtepi32_ps(a); }
static inline vf vf_from_i32(const int32_t *p) { return _mm_cvtepi32_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline void vi_store_i8(int8_t *p, vi a)
{
    int32_t four = _mm_cvtsi128_si32(_mm_packs_epi16(_mm_packs_epi32(a, a), _mm_setzero_si128()));
    memcpy(p, &four, 4);
}
static inline vf vf_scale_by_power(vf x, vi n)
{
    return _mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(x), _mm_slli_epi32(n, 23)));
}

typedef __m128i vc;
static inline vc vc_even(const int8_t *p)
{
    return _mm_srai_epi16(_mm_slli_epi16(_mm_loadu_si128((const __m128i *)p), 8), 8);
}
static inline vc vc_odd(const int8_t *p) { return _mm_srai_epi16(_mm_loadu_si128((const __m128i *)p), 8); }
static inline vc vc_pair(const int8_t *p)
{
    int32_t pair;
    memcpy(&pair, p, 4);
    return _mm_set1_epi32(pair);
}
static inline vi vi_dot(vi acc, vc codes, vc pair) { return _mm_add_epi32(acc, _mm_madd_epi16(codes, pair)); }
static inline void row_store(int8_t *row, int64_t steps, int64_t at, vi x)
{
    __m128i words = _mm_shufflelo_epi16(_mm_packs_epi32(x, _mm_setzero_si128()), 0xd8);
    _mm_storel_epi64((__m128i *)(row + 2 * at), words);
}

#endif
