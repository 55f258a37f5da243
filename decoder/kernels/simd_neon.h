/* The vector primitives of simd.h for AArch64 NEON. */
#ifndef RONDEL_SIMD_NEON_H
#define RONDEL_SIMD_NEON_H

#include <arm_neon.h>
#define LANES 4
typedef float32x4_t vf;
typedef int32x4_t vi;

static inline vf vf_load(const float *p) { return vld1q_f32(p); }
static inline void vf_store(float *p, vf x) { vst1q_f32(p, x); }
static inline vf vf_set(float x) { return vdupq_n_f32(x); }
static inline vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf vf_reciprocal(vf x) { return vdivq_f32(vdupq_n_f32(1.0f), x); }
static inline vf vf_max(vf a, vf b) { return vmaxq_f32(a, b); }
static inline vf vf_min(vf a, vf b) { return vminq_f32(a, b); }
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
static inline vi vi_bits(vf a) { return vreinterpretq_s32_f32(a); }
static inline vf vf_from_vi(vi a) { return vcvtq_f32_s32(a); }
static inline vf vf_from_i32(const int32_t *p) { return vcvtq_f32_s32(vld1q_s32(p)); }
static inline void vi_store_i8(int8_t *p, vi a)
{
    int8x8_t packed = vqmovn_s16(vcombine_s16(vqmovn_s32(a), vdup_n_s16(0)));
    memcpy(p, &packed, 4);
}
static inline vf vf_scale_by_power(vf x, vi n)
{
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), vshlq_n_s32(n, 23)));
}

typedef int16x8_t vc;
static inline vc vc_even(const int8_t *p)
{
    return vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s8(vld1q_s8(p)), 8), 8);
}
static inline vc vc_odd(const int8_t *p) { return vshrq_n_s16(vreinterpretq_s16_s8(vld1q_s8(p)), 8); }
static inline vc vc_pair(const int8_t *p)
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
static inline void row_store(int8_t *row, int64_t steps, int64_t at, vi x)
{
    static const uint8_t order[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    vst1_s8(row + 2 * at, vreinterpret_s8_u8(vtbl1_u8(vreinterpret_u8_s16(vqmovn_s32(x)), vld1_u8(order))));
}

#endif
