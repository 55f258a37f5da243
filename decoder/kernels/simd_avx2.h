/* The vector primitives of simd.h for AVX2 and FMA. */
#ifndef RONDEL_SIMD_AVX2_H
#define RONDEL_SIMD_AVX2_H

#include <immintrin.h>
#define LANES 8
typedef __m256 vf;
typedef __m256i vi;

static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf vf_set(float x) { return _mm256_set1_ps(x); }
static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf vf_reciprocal(vf x) { return _mm256_div_ps(_mm256_set1_ps(1.0f), x); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline float vf_hmax(vf a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
static inline float vf_hsum(vf a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
static inline vf vf_from_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline vf vf_within(vf x, int first, int lo, int hi, vf other)
{
    __m256i index = _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i outside = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), index);
    __m256i inside = _mm256_andnot_si256(outside, _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), index));
    return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(inside));
}
static inline vf vf_zero_below(vf x, vf key, vf limit)
{
    return _mm256_and_ps(x, _mm256_cmp_ps(key, limit, _CMP_GE_OQ));
}
static inline int vf_all_at_most(vf x, vf limit)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(x, limit, _CMP_LE_OQ)) == 0xff;
}
static inline vi vi_zero(void) { return _mm256_setzero_si256(); }
static inline vi vi_load(const int32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline void vi_store(int32_t *p, vi a) { _mm256_storeu_si256((__m256i *)p, a); }
static inline vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
static inline vi vi_round(vf x) { return _mm256_cvtps_epi32(x); }
static inline vi vi_bits(vf a) { return _mm256_castps_si256(a); }
static inline vf vf_from_vi(vi a) { return _mm256_cvtepi32_ps(a); }
static inline vf vf_from_i32(const int32_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline __m128i vi_pack_i16(vi a)
{
    return _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}
static inline void vi_store_i8(int8_t *p, vi a)
{
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(vi_pack_i16(a), _mm_setzero_si128()));
}
static inline vf vf_scale_by_power(vf x, vi n)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(n, 23)));
}

typedef __m256i vc;
static inline vc vc_even(const int8_t *p)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(_mm256_loadu_si256((const __m256i *)p), 8), 8);
}
static inline vc vc_odd(const int8_t *p) { return _mm256_srai_epi16(_mm256_loadu_si256((const __m256i *)p), 8); }
static inline vc vc_pair(const int8_t *p)
{
    int32_t pair;
    memcpy(&pair, p, 4);
    return _mm256_set1_epi32(pair);
}
static inline vi vi_dot(vi acc, vc codes, vc pair)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(codes, pair));
}
static inline void row_store(int8_t *row, int64_t steps, int64_t at, vi x)
{
    __m128i words = _mm_shufflehi_epi16(_mm_shufflelo_epi16(vi_pack_i16(x), 0xd8), 0xd8);
    _mm_storeu_si128((__m128i *)(row + 2 * at), words);
}

#endif
