/* Vector primitives: the only code that differs between instruction sets.
 *
 * A kernel is written against LANES-wide vectors and compiled once per tier; the compiler's own macros,
 * set by that tier's flags, choose the block below. The types:
 *   vf  LANES float32        vi  LANES int32        vc  LANES pairs of int16 (codes or weights)
 * Sixteen lanes are the unit of every stored tile; PARTS vectors hold them.
 *
 * Rules that must stay true: conversions to integer round half to even; vf_hsum adds in one fixed tree;
 * vf_fma is the only place where a multiply and an add may fuse (the build sets -ffp-contract=off).
 */
#ifndef RONDEL_SIMD_H
#define RONDEL_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

#include <immintrin.h>
#define LANES 16
typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vc;

static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf vf_set(float x) { return _mm512_set1_ps(x); }
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
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
static inline vf vf_from_vi(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vf vf_from_i32(const int32_t *p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
static inline void vi_store_i16(int16_t *p, vi a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtsepi32_epi16(a));
}
static inline void vi_store_i8(int8_t *p, vi a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtsepi32_epi8(a)); }
static inline vf vf_scale_by_power(vf x, vi n)
{
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(n, 23)));
}
static inline vc vc_load(const int8_t *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}
static inline vc vc_pair(const int16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, 4);
    return _mm512_set1_epi32(pair);
}
static inline vi vi_dot(vi acc, vc codes, vc pair)
{
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(acc, codes, pair);
#else
    return _mm512_add_epi32(acc, _mm512_madd_epi16(codes, pair));
#endif
}

#elif defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>
#define LANES 8
typedef __m256 vf;
typedef __m256i vi;
typedef __m256i vc;

static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf vf_set(float x) { return _mm256_set1_ps(x); }
static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
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
static inline vf vf_from_vi(vi a) { return _mm256_cvtepi32_ps(a); }
static inline vf vf_from_i32(const int32_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline __m128i vi_pack_i16(vi a)
{
    return _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}
static inline void vi_store_i16(int16_t *p, vi a) { _mm_storeu_si128((__m128i *)p, vi_pack_i16(a)); }
static inline void vi_store_i8(int8_t *p, vi a)
{
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(vi_pack_i16(a), _mm_setzero_si128()));
}
static inline vf vf_scale_by_power(vf x, vi n)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(n, 23)));
}
static inline vc vc_load(const int8_t *p)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
}
static inline vc vc_pair(const int16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, 4);
    return _mm256_set1_epi32(pair);
}
static inline vi vi_dot(vi acc, vc codes, vc pair)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(codes, pair));
}

#elif defined(__SSE2__)

#include <emmintrin.h>
#define LANES 4
typedef __m128 vf;
typedef __m128i vi;
typedef __m128i vc;

static inline vf vf_load(const float *p) { return _mm_loadu_ps(p); }
static inline void vf_store(float *p, vf x) { _mm_storeu_ps(p, x); }
static inline vf vf_set(float x) { return _mm_set1_ps(x); }
static inline vf vf_add(vf a, vf b) { return _mm_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm_div_ps(a, b); }
static inline vf vf_max(vf a, vf b) { return _mm_max_ps(a, b); }
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
static inline vf vf_from_vi(vi a) { return _mm_cvtepi32_ps(a); }
static inline vf vf_from_i32(const int32_t *p) { return _mm_cvtepi32_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline void vi_store_i16(int16_t *p, vi a)
{
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi32(a, _mm_setzero_si128()));
}
static inline void vi_store_i8(int8_t *p, vi a)
{
    int32_t four = _mm_cvtsi128_si32(_mm_packs_epi16(_mm_packs_epi32(a, a), _mm_setzero_si128()));
    memcpy(p, &four, 4);
}
static inline vf vf_scale_by_power(vf x, vi n)
{
    return _mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(x), _mm_slli_epi32(n, 23)));
}
static inline vc vc_load(const int8_t *p)
{
    __m128i x = _mm_loadl_epi64((const __m128i *)p);
    return _mm_srai_epi16(_mm_unpacklo_epi8(x, x), 8);
}
static inline vc vc_pair(const int16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, 4);
    return _mm_set1_epi32(pair);
}
static inline vi vi_dot(vi acc, vc codes, vc pair) { return _mm_add_epi32(acc, _mm_madd_epi16(codes, pair)); }

#elif defined(__aarch64__)

#include <arm_neon.h>
#define LANES 4
typedef float32x4_t vf;
typedef int32x4_t vi;
typedef int16x8_t vc;

static inline vf vf_load(const float *p) { return vld1q_f32(p); }
static inline void vf_store(float *p, vf x) { vst1q_f32(p, x); }
static inline vf vf_set(float x) { return vdupq_n_f32(x); }
static inline vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf vf_max(vf a, vf b) { return vmaxq_f32(a, b); }
static inline vf vf_abs(vf a) { return vabsq_f32(a); }
static inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline float vf_hmax(vf x) { return vmaxvq_f32(x); }
static inline float vf_hsum(vf x) { return vaddvq_f32(x); }
static inline vf vf_from_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
static inline vf vf_within(vf x, int first, int lo, int hi, vf other)
{
    static const int32_t lanes[4] = {0, 1, 2, 3};
    int32x4_t index = vaddq_s32(vdupq_n_s32(first), vld1q_s32(lanes));
    uint32x4_t inside = vandq_u32(vcgeq_s32(index, vdupq_n_s32(lo)), vcltq_s32(index, vdupq_n_s32(hi)));
    return vbslq_f32(inside, x, other);
}
static inline vf vf_zero_below(vf x, vf key, vf limit)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vcgeq_f32(key, limit)));
}
static inline int vf_all_at_most(vf x, vf limit) { return vminvq_u32(vcleq_f32(x, limit)) != 0; }
static inline vi vi_zero(void) { return vdupq_n_s32(0); }
static inline vi vi_load(const int32_t *p) { return vld1q_s32(p); }
static inline void vi_store(int32_t *p, vi a) { vst1q_s32(p, a); }
static inline vi vi_xor(vi a, vi b) { return veorq_s32(a, b); }
static inline vi vi_round(vf x) { return vcvtnq_s32_f32(x); }
static inline vf vf_from_vi(vi a) { return vcvtq_f32_s32(a); }
static inline vf vf_from_i32(const int32_t *p) { return vcvtq_f32_s32(vld1q_s32(p)); }
static inline void vi_store_i16(int16_t *p, vi a) { vst1_s16(p, vqmovn_s32(a)); }
static inline void vi_store_i8(int8_t *p, vi a)
{
    int8x8_t packed = vqmovn_s16(vcombine_s16(vqmovn_s32(a), vdup_n_s16(0)));
    memcpy(p, &packed, 4);
}
static inline vf vf_scale_by_power(vf x, vi n)
{
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), vshlq_n_s32(n, 23)));
}
static inline vc vc_load(const int8_t *p) { return vmovl_s8(vld1_s8(p)); }
static inline vc vc_pair(const int16_t *p)
{
    int32_t pair;
    memcpy(&pair, p, 4);
    return vreinterpretq_s16_s32(vdupq_n_s32(pair));
}
static inline vi vi_dot(vi acc, vc codes, vc pair)
{
    int32x4_t low = vmull_s16(vget_low_s16(codes), vget_low_s16(pair));
    int32x4_t high = vmull_high_s16(codes, pair);
    return vaddq_s32(acc, vpaddq_s32(low, high));
}

#else
#error "no vector primitives for this processor: SSE2 or AArch64 NEON is the least"
#endif

#define PARTS (16 / LANES)

#define EXP2_C1 0x1.62e43p-1f
#define EXP2_C2 0x1.ebfbdcp-3f
#define EXP2_C3 0x1.c6aee8p-5f
#define EXP2_C4 0x1.3b2d4cp-7f
#define EXP2_C5 0x1.5f3e54p-10f
#define EXP2_C6 0x1.41fbbap-13f

/* 2^x for x <= 0, zero below -126. Relative error under 1e-7: a degree-6 minimax polynomial of 2^f on
 * [-1/2, 1/2], then the exponent by integer addition. Minus infinity gives exactly zero. */
static inline vf vf_exp2(vf x)
{
    const vf least = vf_set(-126.0f);
    vf clamped = vf_max(x, least);
    vi whole = vi_round(clamped);
    vf f = vf_sub(clamped, vf_from_vi(whole));
    vf y = vf_set(EXP2_C6);
    y = vf_fma(y, f, vf_set(EXP2_C5));
    y = vf_fma(y, f, vf_set(EXP2_C4));
    y = vf_fma(y, f, vf_set(EXP2_C3));
    y = vf_fma(y, f, vf_set(EXP2_C2));
    y = vf_fma(y, f, vf_set(EXP2_C1));
    y = vf_fma(y, f, vf_set(1.0f));
    return vf_zero_below(vf_scale_by_power(y, whole), x, least);
}

/* The same function of one number, to the same bits. */
static inline float exp2_one(float x)
{
    float lanes[LANES];
    vf_store(lanes, vf_exp2(vf_set(x)));
    return lanes[0];
}

#endif
