// Tiles in vectors of 16 bytes, which every machine has in some form: four rows of a panel at a time, four inputs each.
//
// Of the four codes of a row, the first and third are multiplied as two 16-bit numbers, and so are the second and fourth.
// Their products with 8-bit numbers are added up in 16 bits: 4-bit codes, 8 quads of a block, stay below
// 8 * 2 * 15 * 127 = 30480. Codes of 8 bits are taken apart into two of 4.
#pragma once

#include <cmath>
#include <cstring>

#include "linear.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr int MAX_TILE = 4;
constexpr int GROUPS = 4;  // of four rows, in a panel

typedef int16_t Shorts __attribute__((vector_size(16)));
typedef uint16_t Words __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));

inline Ints both(Shorts pairs) {  // the sum of each pair
    Ints wide = reinterpret_cast<Ints>(pairs);
    return (wide << 16 >> 16) + (wide >> 16);
}

// Four float16 numbers, finite ones
inline Floats halves(const uint16_t* at) {
    Ints bits = {at[0], at[1], at[2], at[3]};
    Floats sizes = reinterpret_cast<Floats>((bits & 0x7fff) << 13) * 0x1p112f;
    return reinterpret_cast<Floats>(reinterpret_cast<Ints>(sizes) | ((bits & 0x8000) << 16));
}

inline Floats repeat(float value) { return Floats{value, value, value, value}; }
inline Ints repeat(int32_t value) { return Ints{value, value, value, value}; }

#ifdef __FP_FAST_FMAF  // the machine has a fused multiply-add
inline Floats add_product(Floats sum, Floats a, Floats b) {
    for (int i = 0; i < 4; ++i) sum[i] = __builtin_fmaf(a[i], b[i], sum[i]);
    return sum;
}
#else
inline Floats add_product(Floats sum, Floats a, Floats b) { return sum + a * b; }
#endif

// 32 activations as pairs of 16-bit numbers: the first and third of each four, and the second and fourth. The ninth four
// are the high codes, of `quad`.
struct Pairs {
    int32_t even[12], odd[12], quad;
};

inline void spread(const Quantized& a, Pairs& pairs) {
    pairs.quad = a.quad;
    for (int at = 0; at < 12; at += 4) {
        Ints fours{};
        std::memcpy(&fours, at < 8 ? a.codes + 4 * at : a.high, at < 8 ? sizeof fours : sizeof a.high);
        Ints even = (fours << 24 >> 24 & 0xffff) | fours << 8 >> 24 << 16;
        Ints odd = (fours << 16 >> 24 & 0xffff) | fours >> 24 << 16;
        std::memcpy(pairs.even + at, &even, sizeof even);
        std::memcpy(pairs.odd + at, &odd, sizeof odd);
    }
}

// Products of a panel's rows, four groups of four, with each token over `quads` quads from `first` on. `packed` is where
// the block begins.
template <bool NIBBLES, int T>
inline void dot(const uint8_t* packed, int first, int quads, const Pairs* x, Ints (*products)[GROUPS]) {
    Shorts fine[T][GROUPS] = {}, coarse[T][GROUPS] = {};
    for (int q = first; q < first + quads; ++q) {
        Shorts even[GROUPS], odd[GROUPS], high_even[GROUPS], high_odd[GROUPS];
        for (int group = 0; group < GROUPS; ++group) {
            Words fours;
            std::memcpy(&fours, packed + (NIBBLES ? q % 4 : q) * 64 + group * 16, sizeof fours);
            if (NIBBLES && q >= 4) fours >>= 4;
            even[group] = reinterpret_cast<Shorts>(fours & 15);
            odd[group] = reinterpret_cast<Shorts>(fours >> 8 & 15);
            high_even[group] = reinterpret_cast<Shorts>(fours >> 4 & 15);
            high_odd[group] = reinterpret_cast<Shorts>(fours >> 12);
        }
        for (int t = 0; t < T; ++t) {
            Shorts a = reinterpret_cast<Shorts>(repeat(x[t].even[q])), b = reinterpret_cast<Shorts>(repeat(x[t].odd[q]));
            for (int group = 0; group < GROUPS; ++group) {
                fine[t][group] += even[group] * a + odd[group] * b;
                if (!NIBBLES) coarse[t][group] += high_even[group] * a + high_odd[group] * b;
            }
        }
    }
    for (int t = 0; t < T; ++t) {
        const int q = x[t].quad;
        const bool has_high = first <= q && q < first + quads;
        const Shorts a = reinterpret_cast<Shorts>(repeat(x[t].even[8])), b = reinterpret_cast<Shorts>(repeat(x[t].odd[8]));
        for (int group = 0; group < GROUPS; ++group) {
            products[t][group] = both(fine[t][group]);
            if (!NIBBLES) products[t][group] += both(coarse[t][group]) * 16;
            if (!has_high) continue;
            Words fours;
            std::memcpy(&fours, packed + (NIBBLES ? q % 4 : q) * 64 + group * 16, sizeof fours);
            if (NIBBLES) fours >>= static_cast<uint16_t>(q & 4);
            Shorts even = reinterpret_cast<Shorts>(fours & 15), odd = reinterpret_cast<Shorts>(fours >> 8 & 15);
            Ints high = both(even * a + odd * b);
            if (!NIBBLES) {
                even = reinterpret_cast<Shorts>(fours >> 4 & 15), odd = reinterpret_cast<Shorts>(fours >> 12);
                high += both(even * a + odd * b) * 16;
            }
            products[t][group] += high << HIGH_BITS;
        }
    }
}

// Sums of one panel over all blocks for T tokens, [T][16]. `stride` is the number of blocks of a row of x.
template <int KIND, int T>
void packed_tile(const Segment& segment, int64_t panel, int64_t blocks, const Quantized* x, int64_t stride, float* sums) {
    constexpr bool NIBBLES = KIND == U4 || KIND == U4_OFFSET, OFFSET = KIND == U4_OFFSET || KIND == U8_OFFSET;
    constexpr int PARTS = KIND == U8_HALVES ? 2 : 1, QUADS = 8 / PARTS, ZERO = OFFSET ? 0 : NIBBLES ? 8 : 128;
    Floats total[T][GROUPS] = {};
    for (int64_t b = 0; b < blocks; ++b) {
        int64_t block = panel * blocks + b;
        const uint8_t* packed = static_cast<const uint8_t*>(segment.codes) + block * (NIBBLES ? 256 : 512);
        Pairs pairs[T];
        for (int t = 0; t < T; ++t) spread(x[t * stride + b], pairs[t]);
        for (int part = 0; part < PARTS; ++part) {
            Ints products[T][GROUPS];
            dot<NIBBLES, T>(packed, part * QUADS, QUADS, pairs, products);
            for (int group = 0; group < GROUPS; ++group) {
                Floats scale = halves(segment.scales + (block * PARTS + part) * PANEL + group * 4);
                for (int t = 0; t < T; ++t) {
                    const Quantized& a = x[t * stride + b];
                    int32_t minus = PARTS == 1 ? a.minus_sum : part ? a.minus_sum - a.minus_first : a.minus_first;
                    Ints product = products[t][group] + repeat(ZERO * minus);
                    Floats factor = scale * repeat(a.scale);
                    total[t][group] = add_product(total[t][group], __builtin_convertvector(product, Floats), factor);
                }
            }
        }
        for (int group = 0; OFFSET && group < GROUPS; ++group) {
            Floats offset = halves(segment.offsets + block * PANEL + group * 4);
            for (int t = 0; t < T; ++t)
                total[t][group] = add_product(total[t][group], offset, repeat(x[t * stride + b].scaled_sum));
        }
    }
    std::memcpy(sums, total, sizeof total);
}

template <int KIND>
inline Floats four(const void* codes, int64_t at) {
    Floats values;
    if (KIND == F32) {
        std::memcpy(&values, static_cast<const float*>(codes) + at, sizeof values);
        return values;
    }
    const uint16_t* half = static_cast<const uint16_t*>(codes) + at;
    const Ints bits = {half[0], half[1], half[2], half[3]};
    if (KIND == BF16) return reinterpret_cast<Floats>(bits << 16);
    const Ints infinite = ((bits & 0x7fff) >= 0x7c00) & 0x7f800000;  // or NaN
    return reinterpret_cast<Floats>(reinterpret_cast<Ints>(halves(half)) | infinite);
}

// Adds every second input of from .. to - 1.
template <int KIND, int T>
inline void add_inputs(const Segment& segment, int64_t panel, int64_t cols, int64_t from, int64_t to, const float* x,
                       Floats (*total)[GROUPS]) {
    Floats sums[T][GROUPS];
    std::memcpy(sums, total, sizeof sums);
    for (int64_t col = from; col < to; col += 2) {
        for (int group = 0; group < GROUPS; ++group) {
            const Floats weights = four<KIND>(segment.codes, (panel * cols + col) * PANEL + 4 * group);
            for (int t = 0; t < T; ++t)
                sums[t][group] = add_product(sums[t][group], weights, repeat(x[t * cols + col]));
        }
    }
    std::memcpy(total, sums, sizeof sums);
}

// Even and odd inputs are summed apart, and the two sums at the end, as on other machines: in turns, over so few inputs
// that the first cache has them the second time.
template <int KIND, int T>
void float_tile(const Segment& segment, int64_t panel, int64_t cols, const float* x, float* sums) {
    constexpr int64_t TURN = 256;
    Floats total[2][T][GROUPS] = {};
    for (int64_t from = 0; from < cols; from += TURN) {
        const int64_t to = from + TURN < cols ? from + TURN : cols;
        for (int odd = 0; odd < 2; ++odd) add_inputs<KIND, T>(segment, panel, cols, from + odd, to, x, total[odd]);
    }
    for (int t = 0; t < T; ++t) {
        for (int group = 0; group < GROUPS; ++group) {
            const Floats sum = total[0][t][group] + total[1][t][group];
            std::memcpy(sums + t * PANEL + 4 * group, &sum, sizeof sum);
        }
    }
}

inline void quantize_whole_block(const float* x, Quantized& out) {
    uint32_t largest = 0, other = 0;
    for (uint32_t quad = 0; quad < 8; ++quad) {
        float size = 0.0f;
        for (int i = 0; i < 4; ++i) {
            float one = std::fabs(x[4 * quad + i]);
            size = one > size ? one : size;
        }
        uint32_t key;
        std::memcpy(&key, &size, 4);
        key = (key & ~QUAD_BITS) | quad;
        if (key > largest) {
            other = largest;
            largest = key;
        } else if (key > other) {
            other = key;
        }
    }
    const Step step = find_step(largest, other);
    int32_t codes[BLOCK], sums[2] = {0, 0};
    for (int i = 0; i < BLOCK; ++i) {
        codes[i] = static_cast<int32_t>(std::nearbyintf(x[i] * step.inverse));
        out.codes[i] = static_cast<int8_t>(codes[i]);
        sums[i / 16] += codes[i];
    }
    finish(out, largest, step, codes, sums[0], sums[1]);
}

}  // namespace
}  // namespace penstock::PENSTOCK_ISA
