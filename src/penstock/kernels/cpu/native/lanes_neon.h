// Lanes as four NEON registers. `max` and `min` select by comparison, because the instructions of these names treat zeros
// and NaN unlike those of x86.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "int4.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr int LANES = 16;
constexpr int FOURS = LANES / 4;

struct Lanes {
    float32x4_t v[FOURS];
};

// The results of `part` for each register of x.
template <class Part>
inline Lanes map(Part part) {
    return {{part(0), part(1), part(2), part(3)}};
}

inline float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline float32x4_t smaller(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }

inline uint32x4_t first(int count, int four) {  // of a register's four lanes
    const int32_t number[4] = {0, 1, 2, 3};
    return vcltq_s32(vld1q_s32(number), vdupq_n_s32(count - 4 * four));
}

inline Lanes broadcast(float value) {
    return map([&](int) { return vdupq_n_f32(value); });
}
inline Lanes load(const float* from) {
    return map([&](int i) { return vld1q_f32(from + 4 * i); });
}
inline void store(float* to, Lanes x) {
    for (int i = 0; i < FOURS; ++i) vst1q_f32(to + 4 * i, x.v[i]);
}
inline Lanes load_first(const float* from, int count) {
    if (count >= LANES) return load(from);
    float values[LANES] = {};
    for (int lane = 0; lane < count; ++lane) values[lane] = from[lane];
    return load(values);
}
inline void store_first(float* to, Lanes x, int count) {
    if (count >= LANES) return store(to, x);
    float values[LANES];
    store(values, x);
    for (int lane = 0; lane < count; ++lane) to[lane] = values[lane];
}
inline Lanes operator+(Lanes a, Lanes b) {
    return map([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
inline Lanes operator-(Lanes a, Lanes b) {
    return map([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
inline Lanes operator*(Lanes a, Lanes b) {
    return map([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
inline Lanes operator/(Lanes a, Lanes b) {
    return map([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
    return map([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
inline Lanes max(Lanes a, Lanes b) {
    return map([&](int i) { return larger(a.v[i], b.v[i]); });
}
inline Lanes min(Lanes a, Lanes b) {
    return map([&](int i) { return smaller(a.v[i], b.v[i]); });
}
inline Lanes abs(Lanes a) {
    return map([&](int i) { return vabsq_f32(a.v[i]); });
}
inline Lanes round(Lanes a) {
    return map([&](int i) { return vrndnq_f32(a.v[i]); });
}
inline Lanes keep(Lanes x, int from, int to, float other) {
    return map([&](int i) {
        return vbslq_f32(vbicq_u32(first(to, i), first(from, i)), x.v[i], vdupq_n_f32(other));
    });
}
inline Lanes where_less(Lanes a, Lanes b, Lanes x, Lanes y) {
    return map([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), x.v[i], y.v[i]); });
}
inline Lanes scale_by_power(Lanes x, Lanes n) {
    return map([&](int i) {
        const int32x4_t biased = vaddq_s32(vcvtq_s32_f32(n.v[i]), vdupq_n_s32(127));
        return vmulq_f32(x.v[i], vreinterpretq_f32_s32(vshlq_n_s32(biased, 23)));
    });
}
inline Lanes load_half(const uint16_t* from) {
    return map([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + 4 * i))); });
}
inline void store_half(uint16_t* to, Lanes x) {
    for (int i = 0; i < FOURS; ++i) vst1_u16(to + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
inline Lanes widen(int8x16_t all) {
    const int16x8_t low = vmovl_s8(vget_low_s8(all)), high = vmovl_s8(vget_high_s8(all));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
inline Lanes load_bytes(const int8_t* from) { return widen(vld1q_s8(from)); }
inline void store_bytes(int8_t* to, Lanes x) {
    int16x4_t fours[FOURS];
    for (int i = 0; i < FOURS; ++i) fours[i] = vmovn_s32(vcvtq_s32_f32(x.v[i]));
    const int8x8_t low = vmovn_s16(vcombine_s16(fours[0], fours[1])), high = vmovn_s16(vcombine_s16(fours[2], fours[3]));
    vst1q_s8(to, vcombine_s8(low, high));
}
inline void load_nibbles(const uint8_t* from, Lanes& low, Lanes& high) {
    const uint8x16_t all = vld1q_u8(from);
    const int8x16_t levels = vld1q_s8(INT4_LEVELS);
    low = widen(vqtbl1q_s8(levels, vandq_u8(all, vdupq_n_u8(15))));
    high = widen(vqtbl1q_s8(levels, vshrq_n_u8(all, 4)));
}
template <int H>
inline Lanes swap_lanes(Lanes x) {
    return map([&](int i) {
        return H == 1 ? vrev64q_f32(x.v[i]) : H == 2 ? vextq_f32(x.v[i], x.v[i], 2) : x.v[i ^ H / 4];
    });
}
inline float sum(Lanes x) {
    const float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float largest(Lanes x) {
    const float32x4_t four = larger(larger(x.v[0], x.v[2]), larger(x.v[1], x.v[3]));
    const float32x2_t low = vget_low_f32(four), high = vget_high_f32(four);
    const float32x2_t two = vbsl_f32(vcgt_f32(low, high), low, high);
    const float a = vget_lane_f32(two, 0), b = vget_lane_f32(two, 1);
    return a > b ? a : b;
}

}  // namespace
}  // namespace penstock::PENSTOCK_ISA
