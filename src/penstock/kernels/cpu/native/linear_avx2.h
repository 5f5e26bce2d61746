// Tiles with AVX2: eight rows, half a panel, are the lanes of a register.
//
// Products of bytes are added up as 16-bit numbers: 4-bit codes times 8-bit ones, 8 quads of a block, stay below
// 8 * 2 * 15 * 127 = 30480. Codes of 8 bits are taken apart into two of 4.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "linear.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr int MAX_TILE = 4;

inline __m256 halves(const uint16_t* at) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

inline __m256i load(const uint8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }

inline __m256i broadcast(const int8_t* four) {
    int32_t word;
    std::memcpy(&word, four, 4);
    return _mm256_set1_epi32(word);
}

// Products of eight rows with the high codes, as they count; 0 where these belong to other quads.
template <bool NIBBLES, int QUADS>
inline __m256i high_dot(const uint8_t* packed, int first, const Quantized& a) {
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1), sixteens = _mm256_set1_epi16(16);
    const int32_t q = a.quad;
    __m256i pair = load(packed + (NIBBLES ? q % 4 : q) * 64), four = broadcast(a.high);
    __m256i small = NIBBLES ? _mm256_srl_epi16(pair, _mm_cvtsi32_si128(q & 4)) : pair;
    __m256i products = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_and_si256(small, low), four), ones);
    if (!NIBBLES) {
        __m256i large = _mm256_and_si256(_mm256_srli_epi16(pair, 4), low);
        products = _mm256_add_epi32(products, _mm256_madd_epi16(_mm256_maddubs_epi16(large, four), sixteens));
    }
    if (QUADS < 8) products = _mm256_and_si256(products, _mm256_set1_epi32(q / 4 == first / 4 ? -1 : 0));
    return _mm256_slli_epi32(products, HIGH_BITS);
}

// Products of HALVES times eight rows with each token over QUADS quads from `first` on. `packed` is where these rows begin in
// the block.
template <bool NIBBLES, int QUADS, int HALVES, int T>
inline void dot(const uint8_t* packed, int first, const Quantized* const* x, __m256i (*products)[T]) {
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1), sixteens = _mm256_set1_epi16(16);
    __m256i fine[HALVES][T], coarse[HALVES][T];
    for (int half = 0; half < HALVES; ++half)
        for (int t = 0; t < T; ++t) fine[half][t] = coarse[half][t] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int q = first; q < first + QUADS; ++q) {
        __m256i small[HALVES], large[HALVES];
        for (int half = 0; half < HALVES; ++half) {
            __m256i pair = load(packed + (NIBBLES ? q % 4 : q) * 64 + half * 32);
            small[half] = _mm256_and_si256(NIBBLES && q >= 4 ? _mm256_srli_epi16(pair, 4) : pair, low);
            large[half] = _mm256_and_si256(_mm256_srli_epi16(pair, 4), low);
        }
        for (int t = 0; t < T; ++t) {
            __m256i four = broadcast(x[t]->codes + 4 * q);
            for (int half = 0; half < HALVES; ++half) {
                fine[half][t] = _mm256_add_epi16(fine[half][t], _mm256_maddubs_epi16(small[half], four));
                if (!NIBBLES) coarse[half][t] = _mm256_add_epi16(coarse[half][t], _mm256_maddubs_epi16(large[half], four));
            }
        }
    }
    for (int half = 0; half < HALVES; ++half) {
        for (int t = 0; t < T; ++t) {
            __m256i sum = high_dot<NIBBLES, QUADS>(packed + 32 * half, first, *x[t]);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(fine[half][t], ones));
            products[half][t] = NIBBLES ? sum : _mm256_add_epi32(sum, _mm256_madd_epi16(coarse[half][t], sixteens));
        }
    }
}

// Sums of one panel over all blocks for T tokens, [T][16]. `stride` is the number of blocks of a row of x.
template <int KIND, int T>
void packed_tile(const Segment& segment, int64_t panel, int64_t blocks, const Quantized* x, int64_t stride, float* sums) {
    constexpr bool NIBBLES = KIND == U4 || KIND == U4_OFFSET, OFFSET = KIND == U4_OFFSET || KIND == U8_OFFSET;
    constexpr int GROUPS = KIND == U8_HALVES ? 2 : 1, QUADS = 8 / GROUPS, ZERO = OFFSET ? 0 : NIBBLES ? 8 : 128;
    constexpr int64_t BYTES = NIBBLES ? 256 : 512;
    constexpr int HALVES = NIBBLES || T == 1 ? 2 : 1;  // of the panel, whose sums fit into the registers
    __m256 total[2][T];
    for (int t = 0; t < T; ++t) total[0][t] = total[1][t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b) {
        int64_t block = panel * blocks + b;
        const uint8_t* packed = static_cast<const uint8_t*>(segment.codes) + block * BYTES;
        const Quantized* row[T];
        for (int t = 0; t < T; ++t) row[t] = x + t * stride + b;
        for (int64_t line = 0; line < BYTES; line += 64) {
            _mm_prefetch(reinterpret_cast<const char*>(packed + 4 * BYTES + line), _MM_HINT_T0);
        }
#pragma GCC unroll 4
        for (int part = 0; part < GROUPS * 2 / HALVES; ++part) {
            const int group = part % GROUPS, first = part / GROUPS * HALVES;
            asm volatile("" ::: "memory");  // otherwise GCC keeps the broadcasts of all quads for the next part, in memory
            __m256i products[HALVES][T];
            dot<NIBBLES, QUADS, HALVES, T>(packed + 32 * first, group * QUADS, row, products);
            for (int half = 0; half < HALVES; ++half) {
                __m256 scale = halves(segment.scales + (block * GROUPS + group) * PANEL + (first + half) * 8);
                for (int t = 0; t < T; ++t) {
                    const Quantized& a = *row[t];
                    int32_t minus = GROUPS == 1 ? a.minus_sum : group ? a.minus_sum - a.minus_first : a.minus_first;
                    __m256 product = _mm256_cvtepi32_ps(_mm256_add_epi32(products[half][t], _mm256_set1_epi32(ZERO * minus)));
                    __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(a.scale));
                    total[first + half][t] = _mm256_fmadd_ps(product, factor, total[first + half][t]);
                }
            }
        }
        for (int half = 0; OFFSET && half < 2; ++half) {
            __m256 offset = halves(segment.offsets + block * PANEL + half * 8);
            for (int t = 0; t < T; ++t)
                total[half][t] = _mm256_fmadd_ps(offset, _mm256_set1_ps(row[t]->scaled_sum), total[half][t]);
        }
    }
    for (int t = 0; t < T; ++t) {
        _mm256_storeu_ps(sums + t * PANEL, total[0][t]);
        _mm256_storeu_ps(sums + t * PANEL + 8, total[1][t]);
    }
}

template <int KIND>
inline __m256 eight(const void* codes, int64_t at) {
    if (KIND == F32) return _mm256_loadu_ps(static_cast<const float*>(codes) + at);
    const uint16_t* half = static_cast<const uint16_t*>(codes) + at;
    if (KIND == F16) return halves(half);
    __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(half));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// Adds inputs from .. to - 1 to the sums of two CHAINS in turn, or every second of them to the sums of one.
template <int KIND, int T, int CHAINS>
inline void add_inputs(const Segment& segment, int64_t panel, int64_t cols, int64_t from, int64_t to, const float* x,
                       __m256 (*total)[T][2]) {
    __m256 sums[CHAINS][T][2];
    std::memcpy(sums, total, sizeof sums);
    for (int64_t col = from; col < to; col += 2) {
        for (int chain = 0; chain < CHAINS && col + chain < to; ++chain) {
            int64_t at = (panel * cols + col + chain) * PANEL;
            __m256 low = eight<KIND>(segment.codes, at), high = eight<KIND>(segment.codes, at + 8);
            for (int t = 0; t < T; ++t) {
                __m256 value = _mm256_set1_ps(x[t * cols + col + chain]);
                sums[chain][t][0] = _mm256_fmadd_ps(low, value, sums[chain][t][0]);
                sums[chain][t][1] = _mm256_fmadd_ps(high, value, sums[chain][t][1]);
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
    __m256 total[2][T][2] = {};
    if constexpr (T > 2) {
        for (int64_t from = 0; from < cols; from += TURN) {
            int64_t to = from + TURN < cols ? from + TURN : cols;
            for (int odd = 0; odd < 2; ++odd) add_inputs<KIND, T, 1>(segment, panel, cols, from + odd, to, x, total + odd);
        }
    } else {
        add_inputs<KIND, T, 2>(segment, panel, cols, 0, cols, x, total);
    }
    for (int t = 0; t < T; ++t)
        for (int half = 0; half < 2; ++half)
            _mm256_storeu_ps(sums + t * PANEL + 8 * half, _mm256_add_ps(total[0][t][half], total[1][t][half]));
}

// The largest lane, in all lanes.
inline __m256i largest_lane(__m256i x) {
    x = _mm256_max_epu32(x, _mm256_permute2x128_si256(x, x, 1));
    x = _mm256_max_epu32(x, _mm256_shuffle_epi32(x, 0x4e));
    return _mm256_max_epu32(x, _mm256_shuffle_epi32(x, 0xb1));
}

inline void quantize_whole_block(const float* x, Quantized& out) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 values[4], pairs[2];
    for (int i = 0; i < 2; ++i) {
        values[2 * i] = _mm256_loadu_ps(x + 16 * i);
        values[2 * i + 1] = _mm256_loadu_ps(x + 16 * i + 8);
        __m256 sizes[2] = {_mm256_andnot_ps(sign, values[2 * i]), _mm256_andnot_ps(sign, values[2 * i + 1])};
        pairs[i] = _mm256_max_ps(_mm256_shuffle_ps(sizes[0], sizes[1], 0x88), _mm256_shuffle_ps(sizes[0], sizes[1], 0xdd));
    }
    // The largest of each quad.
    __m256 quads = _mm256_max_ps(_mm256_shuffle_ps(pairs[0], pairs[1], 0x88), _mm256_shuffle_ps(pairs[0], pairs[1], 0xdd));
    const __m256i numbers = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7), bits = _mm256_set1_epi32(QUAD_BITS);
    __m256i keys = _mm256_or_si256(_mm256_andnot_si256(bits, _mm256_castps_si256(quads)), numbers);
    __m256i top = largest_lane(keys);
    __m256i other = largest_lane(_mm256_andnot_si256(_mm256_cmpeq_epi32(keys, top), keys));
    const uint32_t largest = static_cast<uint32_t>(_mm256_cvtsi256_si32(top));
    const Step step = find_step(largest, static_cast<uint32_t>(_mm256_cvtsi256_si32(other)));
    __m256 inverse = _mm256_set1_ps(step.inverse);
    __m256i codes[4];
    alignas(32) int32_t wide[BLOCK];
    for (int i = 0; i < 4; ++i) {
        codes[i] = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], inverse));
        _mm256_store_si256(reinterpret_cast<__m256i*>(wide + 8 * i), codes[i]);
    }
    __m256i words[2] = {_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(codes[2], codes[3])};
    __m256i bytes = _mm256_packs_epi16(words[0], words[1]);  // fours of each, the lanes interleaved
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.codes), bytes);
    __m256i halves[2] = {_mm256_add_epi32(codes[0], codes[1]), _mm256_add_epi32(codes[2], codes[3])};
    __m256i sums = _mm256_hadd_epi32(halves[0], halves[1]);  // of the first 16 two, of the others two, and again
    __m128i fours = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    fours = _mm_hadd_epi32(fours, fours);
    finish(out, largest, step, wide, _mm_extract_epi32(fours, 0), _mm_extract_epi32(fours, 1));
}

}  // namespace
}  // namespace penstock::PENSTOCK_ISA
