// Tiles with NEON, with or without the dot product instructions: four rows of a panel at a time, as the lanes of a
// register.
//
// Both multiply signed bytes, so codes of 8 bits are read as code - 128. Without dot products, products are added up as
// 16-bit numbers: two of 8-bit codes (2 * 128 * 127 = 32512), or four of 4-bit ones.
#pragma once

#if defined(__ARM_FEATURE_DOTPROD) && !defined(__clang__)
#pragma GCC target("arch=armv8.2-a+dotprod")  // GCC 12 inlines these instructions only into code for this architecture
#endif
#include <arm_neon.h>

#include <cstring>

#include "linear.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr int MAX_TILE = 4;
constexpr int GROUPS = 4;  // of four rows, in a panel

inline float32x4_t halves(const uint16_t* at) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at))); }

// The codes of four rows, eight quads. `packed` is where the rows begin in the block.
template <bool NIBBLES>
inline void load_codes(const uint8_t* packed, int8x16_t* codes) {
    for (int q = 0; q < (NIBBLES ? 4 : 8); ++q) {
        const uint8x16_t bytes = vld1q_u8(packed + 64 * q);
        if (NIBBLES) {
            codes[q] = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
            codes[4 + q] = vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
        } else {
            codes[q] = vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(128)));
        }
    }
}

// `sum` and the products of four quads.
template <bool NIBBLES>
inline int32x4_t dot(int32x4_t sum, const int8x16_t* codes, const int8_t* x) {
#ifdef __ARM_FEATURE_DOTPROD
    const int8x16_t quads = vld1q_s8(x);
    sum = vdotq_laneq_s32(sum, codes[0], quads, 0);
    sum = vdotq_laneq_s32(sum, codes[1], quads, 1);
    sum = vdotq_laneq_s32(sum, codes[2], quads, 2);
    return vdotq_laneq_s32(sum, codes[3], quads, 3);
#else
    constexpr int TOGETHER = NIBBLES ? 4 : 2;  // quads in 16 bits
    int32x4_t low = vdupq_n_s32(0), high = low;  // two sums of each row: rows 0 and 1, rows 2 and 3
    for (int first = 0; first < 4; first += TOGETHER) {
        int16x8_t low_products = vdupq_n_s16(0), high_products = low_products;
        for (int q = first; q < first + TOGETHER; ++q) {
            int32_t word;
            std::memcpy(&word, x + 4 * q, sizeof word);
            const int8x8_t quad = vreinterpret_s8_s32(vdup_n_s32(word));
            low_products = vmlal_s8(low_products, vget_low_s8(codes[q]), quad);
            high_products = vmlal_s8(high_products, vget_high_s8(codes[q]), quad);
        }
        low = vpadalq_s16(low, low_products);
        high = vpadalq_s16(high, high_products);
    }
    return vaddq_s32(sum, vpaddq_s32(low, high));
#endif
}

// Products of the high codes, as they count. `packed` is where the rows begin in the block.
template <bool NIBBLES>
inline int32x4_t high_dot(const uint8_t* packed, const Quantized& a) {
    const uint8x16_t bytes = vld1q_u8(packed + 64 * (NIBBLES ? a.quad & 3 : a.quad));
    const uint8x16_t nibbles = vandq_u8(vshlq_u8(bytes, vdupq_n_s8(static_cast<int8_t>(-(a.quad & 4)))), vdupq_n_u8(15));
    const int8x16_t codes = vreinterpretq_s8_u8(NIBBLES ? nibbles : veorq_u8(bytes, vdupq_n_u8(128)));
    int32_t word;
    std::memcpy(&word, a.high, sizeof word);
#ifdef __ARM_FEATURE_DOTPROD
    const int32x4_t products = vdotq_s32(vdupq_n_s32(0), codes, vreinterpretq_s8_s32(vdupq_n_s32(word)));
#else
    const int8x8_t quad = vreinterpret_s8_s32(vdup_n_s32(word));
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(codes), quad));
    const int32x4_t products = vpaddq_s32(low, vpaddlq_s16(vmull_s8(vget_high_s8(codes), quad)));
#endif
    return vshlq_n_s32(products, HIGH_BITS);
}

// Sums of one panel over all blocks for T tokens, [T][16]. `stride` is the number of blocks of a row of x.
template <int KIND, int T>
void packed_tile(const Segment& segment, int64_t panel, int64_t blocks, const Quantized* x, int64_t stride, float* sums) {
    constexpr bool NIBBLES = KIND == U4 || KIND == U4_OFFSET, OFFSET = KIND == U4_OFFSET || KIND == U8_OFFSET;
    constexpr bool HALVES = KIND == U8_HALVES;
    // What is left to subtract from each code.
    constexpr int ZERO = (OFFSET ? 0 : NIBBLES ? 8 : 128) - (NIBBLES ? 0 : 128);
    constexpr int64_t BYTES = NIBBLES ? 256 : 512;
    float32x4_t total[T][GROUPS];
    for (int t = 0; t < T; ++t)
        for (int group = 0; group < GROUPS; ++group) total[t][group] = vdupq_n_f32(0.0f);
    for (int64_t b = 0; b < blocks; ++b) {
        const int64_t block = panel * blocks + b;
        const uint8_t* packed = static_cast<const uint8_t*>(segment.codes) + block * BYTES;
        for (int group = 0; group < GROUPS; ++group) {
            int8x16_t codes[8];
            load_codes<NIBBLES>(packed + 16 * group, codes);
            const uint16_t* scales = segment.scales + block * PANEL * (HALVES ? 2 : 1) + 4 * group;
            const float32x4_t first_scale = halves(scales), second_scale = halves(scales + (HALVES ? PANEL : 0));
            for (int t = 0; t < T; ++t) {
                const Quantized& a = x[t * stride + b];
                float32x4_t& sum = total[t][group];
                const int32x4_t high = high_dot<NIBBLES>(packed + 16 * group, a), none = vdupq_n_s32(0);
                const bool in_first = !HALVES || a.quad < 4;
                int32x4_t product = vaddq_s32(vdupq_n_s32(ZERO * a.minus_sum), in_first ? high : none);
                product = dot<NIBBLES>(product, codes, a.codes);
                if (HALVES) {
                    sum = vfmaq_f32(sum, vcvtq_f32_s32(product), vmulq_n_f32(first_scale, a.scale));
                    product = in_first ? none : high;
                }
                product = dot<NIBBLES>(product, codes + 4, a.codes + 16);
                sum = vfmaq_f32(sum, vcvtq_f32_s32(product), vmulq_n_f32(second_scale, a.scale));
                if (OFFSET) sum = vfmaq_n_f32(sum, halves(segment.offsets + block * PANEL + 4 * group), a.scaled_sum);
            }
        }
    }
    for (int t = 0; t < T; ++t)
        for (int group = 0; group < GROUPS; ++group) vst1q_f32(sums + t * PANEL + 4 * group, total[t][group]);
}

template <int KIND>
inline float32x4_t four(const void* codes, int64_t at) {
    if (KIND == F32) return vld1q_f32(static_cast<const float*>(codes) + at);
    const uint16_t* half = static_cast<const uint16_t*>(codes) + at;
    if (KIND == F16) return halves(half);
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(half), 16));
}

// Adds inputs from .. to - 1 to the sums of two CHAINS in turn, or every second of them to the sums of one.
template <int KIND, int T, int CHAINS>
inline void add_inputs(const Segment& segment, int64_t panel, int64_t cols, int64_t from, int64_t to, const float* x,
                       float32x4_t (*total)[T][GROUPS]) {
    float32x4_t sums[CHAINS][T][GROUPS];
    std::memcpy(sums, total, sizeof sums);
    for (int64_t col = from; col < to; col += 2) {
        for (int chain = 0; chain < CHAINS && col + chain < to; ++chain) {
            for (int group = 0; group < GROUPS; ++group) {
                const int64_t at = (panel * cols + col + chain) * PANEL + 4 * group;
                const float32x4_t weights = four<KIND>(segment.codes, at);
                for (int t = 0; t < T; ++t)
                    sums[chain][t][group] = vfmaq_n_f32(sums[chain][t][group], weights, x[t * cols + col + chain]);
            }
        }
    }
    std::memcpy(total, sums, sizeof sums);
}

// Even and odd inputs are summed apart, and the two sums at the end, as on other machines: together while the registers
// suffice, otherwise in turns, over so few inputs that the first cache has them the second time.
template <int KIND, int T>
void float_tile(const Segment& segment, int64_t panel, int64_t cols, const float* x, float* sums) {
    constexpr int64_t TURN = 256;
    float32x4_t total[2][T][GROUPS] = {};
    if constexpr (T > 2) {
        for (int64_t from = 0; from < cols; from += TURN) {
            const int64_t to = from + TURN < cols ? from + TURN : cols;
            for (int odd = 0; odd < 2; ++odd) add_inputs<KIND, T, 1>(segment, panel, cols, from + odd, to, x, total + odd);
        }
    } else {
        add_inputs<KIND, T, 2>(segment, panel, cols, 0, cols, x, total);
    }
    for (int t = 0; t < T; ++t)
        for (int group = 0; group < GROUPS; ++group)
            vst1q_f32(sums + t * PANEL + 4 * group, vaddq_f32(total[0][t][group], total[1][t][group]));
}

inline void quantize_whole_block(const float* x, Quantized& out) {
    float32x4_t values[8], sizes[8];
    for (int i = 0; i < 8; ++i) {
        values[i] = vld1q_f32(x + 4 * i);
        sizes[i] = vabsq_f32(values[i]);
    }
    // The largest of each quad, of four quads at a time, as integers with the quad's number.
    const uint32x4_t numbers = {0, 1, 2, 3};
    uint32x4_t keys[2];
    for (int half = 0; half < 2; ++half) {
        const float32x4_t* four = sizes + 4 * half;
        const float32x4_t quads = vpmaxq_f32(vpmaxq_f32(four[0], four[1]), vpmaxq_f32(four[2], four[3]));
        const uint32x4_t bits = vbicq_u32(vreinterpretq_u32_f32(quads), vdupq_n_u32(QUAD_BITS));
        keys[half] = vorrq_u32(bits, vaddq_u32(numbers, vdupq_n_u32(4 * half)));
    }
    const uint32_t largest = vmaxvq_u32(vmaxq_u32(keys[0], keys[1]));
    for (uint32x4_t& key : keys) key = vbicq_u32(key, vceqq_u32(key, vdupq_n_u32(largest)));
    const Step step = find_step(largest, vmaxvq_u32(vmaxq_u32(keys[0], keys[1])));
    int32_t wide[BLOCK], sums[2];
    for (int half = 0; half < 2; ++half) {
        int32x4_t codes[4];
        for (int i = 0; i < 4; ++i) {
            codes[i] = vcvtnq_s32_f32(vmulq_n_f32(values[4 * half + i], step.inverse));
            vst1q_s32(wide + 16 * half + 4 * i, codes[i]);
        }
        const int16x8_t low = vcombine_s16(vqmovn_s32(codes[0]), vqmovn_s32(codes[1]));
        const int16x8_t high = vcombine_s16(vqmovn_s32(codes[2]), vqmovn_s32(codes[3]));
        vst1q_s8(out.codes + 16 * half, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
        sums[half] = vaddvq_s32(vaddq_s32(vaddq_s32(codes[0], codes[1]), vaddq_s32(codes[2], codes[3])));
    }
    finish(out, largest, step, wide, sums[0], sums[1]);
}

}  // namespace
}  // namespace penstock::PENSTOCK_ISA
