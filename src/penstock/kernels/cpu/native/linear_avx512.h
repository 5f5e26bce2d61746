// Tiles with AVX-512, with or without VNNI: a panel's 16 rows are the lanes of a register, the codes of a block stay in
// registers while all tokens of the tile pass by.
//
// Without VNNI products of bytes are added up as 16-bit numbers: 4-bit codes times 8-bit ones, 4 quads, stay below
// 4 * 2 * 15 * 128 = 15360. Codes of 8 bits are taken apart into two of 4.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "linear.h"

namespace penstock::PENSTOCK_ISA {
namespace {

#ifdef __AVX512VNNI__
constexpr bool VNNI = true;
#else
constexpr bool VNNI = false;
#endif
constexpr int MAX_TILE = 8;

inline __m512 halves(const uint16_t* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

inline __m512i broadcast(const int8_t* four) {
    int32_t word;
    std::memcpy(&word, four, 4);
    return _mm512_set1_epi32(word);
}

// `sum` and the products of four quads. Eight in a row would be a longer chain than the others can hide. `NIBBLES`: the codes
// have 4 bits; otherwise, without VNNI, codes[8 + q] are the upper halves of codes[q].
template <bool NIBBLES>
inline __m512i dot(__m512i sum, const __m512i* codes, const int8_t* x) {
#ifdef __AVX512VNNI__
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) sum = _mm512_dpbusd_epi32(sum, codes[q], broadcast(x + 4 * q));
    return sum;
#else
    __m512i fine = _mm512_setzero_si512(), coarse = fine;
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
        const __m512i four = broadcast(x + 4 * q);
        fine = _mm512_add_epi16(fine, _mm512_maddubs_epi16(codes[q], four));
        if (!NIBBLES) coarse = _mm512_add_epi16(coarse, _mm512_maddubs_epi16(codes[8 + q], four));
    }
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(fine, _mm512_set1_epi16(1)));
    return NIBBLES ? sum : _mm512_add_epi32(sum, _mm512_madd_epi16(coarse, _mm512_set1_epi16(16)));
#endif
}

// Products of the high codes, as they count. `codes` are those of the quad.
template <bool NIBBLES>
inline __m512i high_dot(__m512i codes, const Quantized& a) {
    const __m512i four = broadcast(a.high);
#ifdef __AVX512VNNI__
    const __m512i products = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, four);
#else
    const __m512i low = _mm512_set1_epi8(15);
    __m512i fine = _mm512_maddubs_epi16(_mm512_and_si512(codes, low), four);
    __m512i products = _mm512_madd_epi16(fine, _mm512_set1_epi16(1));
    if (!NIBBLES) {
        __m512i coarse = _mm512_maddubs_epi16(_mm512_and_si512(_mm512_srli_epi16(codes, 4), low), four);
        products = _mm512_add_epi32(products, _mm512_madd_epi16(coarse, _mm512_set1_epi16(16)));
    }
#endif
    return _mm512_slli_epi32(products, HIGH_BITS);
}

// Sums of one panel over all blocks for T tokens, [T][16]. `stride` is the number of blocks of a row of x.
//
// Never inline. Measured: what else is in the caller changes the order of GCC's loads, by up to 4% of a token alone.
template <int KIND, int T>
__attribute__((noinline)) void packed_tile(const Segment& segment, int64_t panel, int64_t blocks, const Quantized* x,
                                           int64_t stride, float* sums) {
    constexpr bool NIBBLES = KIND == U4 || KIND == U4_OFFSET, OFFSET = KIND == U4_OFFSET || KIND == U8_OFFSET;
    constexpr int64_t BYTES = NIBBLES ? 256 : 512, SCALES = KIND == U8_HALVES ? 32 : 16;
    // Measured: the hardware prefetcher reads one row of 8-bit codes at the speed of memory if addresses only rise, and
    // at three quarters of it with software prefetch. With more rows it does not look far enough ahead.
    constexpr bool FETCH = NIBBLES || T > 1;
    constexpr int64_t AHEAD = 4096, SCALES_AHEAD = 256;
    // The hardware prefetcher begins anew with each page. Measured on Zen 4: 2 to 8% less time with these lines of a page.
    constexpr int64_t PAGE_BYTES = 4096, PAGE_LINES = 3;
    constexpr _mm_hint WHERE = NIBBLES || T < 8 ? _MM_HINT_T0 : _MM_HINT_T1;
    constexpr bool COPY = NIBBLES && T > 2;  // of the unpacked codes, for the quads with high codes
    const uint8_t* packed = static_cast<const uint8_t*>(segment.codes) + panel * blocks * BYTES;
    const uint16_t* scales = segment.scales + panel * blocks * SCALES;
    const uint16_t* offsets = OFFSET ? segment.offsets + panel * blocks * 16 : nullptr;
    const __m512i low = _mm512_set1_epi8(15);
    __m512 total[T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) total[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b, packed += BYTES) {
        __m512i codes[NIBBLES || VNNI ? 8 : 16];
        alignas(64) uint8_t unpacked[COPY ? 512 : 64];
        if (FETCH) {
            for (int64_t line = 0; line < BYTES; line += 64) _mm_prefetch(packed + AHEAD + line, WHERE);
            if (!NIBBLES) _mm_prefetch(scales + b * SCALES + SCALES_AHEAD, _MM_HINT_T0);
        } else if ((reinterpret_cast<uintptr_t>(packed) & (PAGE_BYTES - 1)) < BYTES) {
            for (int64_t line = 0; line < PAGE_LINES; ++line) _mm_prefetch(packed + 2 * PAGE_BYTES + 64 * line, _MM_HINT_T1);
        }
        if (NIBBLES) {
#pragma GCC unroll 8
            for (int q = 0; q < 4; ++q) {
                __m512i pair = _mm512_loadu_si512(packed + 64 * q);
                codes[q] = _mm512_and_si512(pair, low);
                codes[4 + q] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low);
            }
        } else {
#pragma GCC unroll 8
            for (int q = 0; q < 8; ++q) {
                codes[q] = _mm512_loadu_si512(packed + 64 * q);
                if (VNNI) continue;
                codes[8 + q] = _mm512_and_si512(_mm512_srli_epi16(codes[q], 4), low);
                codes[q] = _mm512_and_si512(codes[q], low);
            }
        }
        if (COPY) {
#pragma GCC unroll 8
            for (int q = 0; q < 8; ++q) _mm512_store_si512(unpacked + 64 * q, codes[q]);
        }
        const auto quad = [&](int32_t q) {
            if (COPY) return _mm512_load_si512(unpacked + 64 * q);
            if (!NIBBLES) return _mm512_loadu_si512(packed + 64 * q);
            const __m512i pair = _mm512_loadu_si512(packed + 64 * (q & 3));
            return _mm512_and_si512(_mm512_srl_epi16(pair, _mm_cvtsi32_si128(q & 4)), low);
        };
        if constexpr (KIND == U8_HALVES) {
            __m512 first = halves(scales + b * 32), second = halves(scales + b * 32 + 16);
#pragma GCC unroll 16
            for (int t = 0; t < T; ++t) {
                const Quantized& a = x[t * stride + b];
                __m512i start = _mm512_slli_epi32(_mm512_set1_epi32(a.minus_first), 7);
                __m512i rest = _mm512_slli_epi32(_mm512_set1_epi32(a.minus_sum - a.minus_first), 7);
                __m512i high = high_dot<NIBBLES>(quad(a.quad), a);
                start = _mm512_mask_add_epi32(start, a.quad < 4 ? 0xffff : 0, start, high);
                rest = _mm512_mask_add_epi32(rest, a.quad < 4 ? 0 : 0xffff, rest, high);
                __m512 one = _mm512_cvtepi32_ps(dot<NIBBLES>(start, codes, a.codes));
                __m512 two = _mm512_cvtepi32_ps(dot<NIBBLES>(rest, codes + 4, a.codes + 16));
                __m512 scale = _mm512_set1_ps(a.scale);
                total[t] = _mm512_fmadd_ps(one, _mm512_mul_ps(first, scale), total[t]);
                total[t] = _mm512_fmadd_ps(two, _mm512_mul_ps(second, scale), total[t]);
            }
        } else {
            __m512 scale = halves(scales + b * 16), offset = OFFSET ? halves(offsets + b * 16) : _mm512_setzero_ps();
#pragma GCC unroll 16
            for (int t = 0; t < T; ++t) {
                const Quantized& a = x[t * stride + b];
                __m512i start = _mm512_setzero_si512();
                if (!OFFSET) start = _mm512_slli_epi32(_mm512_set1_epi32(a.minus_sum), NIBBLES ? 3 : 7);
                __m512i first = dot<NIBBLES>(start, codes, a.codes);
                __m512i second = dot<NIBBLES>(high_dot<NIBBLES>(quad(a.quad), a), codes + 4, a.codes + 16);
                __m512 product = _mm512_cvtepi32_ps(_mm512_add_epi32(first, second));
                total[t] = _mm512_fmadd_ps(product, _mm512_mul_ps(scale, _mm512_set1_ps(a.scale)), total[t]);
                if (OFFSET) total[t] = _mm512_fmadd_ps(offset, _mm512_set1_ps(a.scaled_sum), total[t]);
            }
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) _mm512_storeu_ps(sums + t * PANEL, total[t]);
}

template <int KIND>
inline __m512 sixteen(const void* codes, int64_t at) {
    if (KIND == F32) return _mm512_loadu_ps(static_cast<const float*>(codes) + at);
    const __m256i* half = reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(codes) + at);
    if (KIND == F16) return _mm512_cvtph_ps(_mm256_loadu_si256(half));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(half)), 16));
}

// Even and odd inputs are summed apart, and the two sums at the end: one chain would wait for itself.
template <int KIND, int T>
void float_tile(const Segment& segment, int64_t panel, int64_t cols, const float* x, float* sums) {
    int64_t at = panel * cols * PANEL, even = cols / 2 * 2;
    __m512 total[2][T];
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) total[0][t] = total[1][t] = _mm512_setzero_ps();
    for (int64_t col = 0; col < even; col += 2) {
        __m512 first = sixteen<KIND>(segment.codes, at + col * PANEL);
        __m512 second = sixteen<KIND>(segment.codes, at + (col + 1) * PANEL);
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) {
            total[0][t] = _mm512_fmadd_ps(first, _mm512_set1_ps(x[t * cols + col]), total[0][t]);
            total[1][t] = _mm512_fmadd_ps(second, _mm512_set1_ps(x[t * cols + col + 1]), total[1][t]);
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) {
        if (even < cols) {
            __m512 last = sixteen<KIND>(segment.codes, at + even * PANEL);
            total[0][t] = _mm512_fmadd_ps(last, _mm512_set1_ps(x[t * cols + even]), total[0][t]);
        }
        _mm512_storeu_ps(sums + t * PANEL, _mm512_add_ps(total[0][t], total[1][t]));
    }
}

// The largest lane, in all lanes.
inline __m128i largest_lane(__m128i x) {
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_max_epu32(x, _mm_shuffle_epi32(x, 0xb1));
}

inline __m256i add_halves(__m512i x) {
    return _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
}

inline void quantize_whole_block(const float* x, Quantized& out) {
    const __m512 values[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)};
    const __m512 sizes[2] = {_mm512_abs_ps(values[0]), _mm512_abs_ps(values[1])};
    // The largest of each pair, then of each quad.
    __m512 pairs = _mm512_max_ps(_mm512_shuffle_ps(sizes[0], sizes[1], 0x88), _mm512_shuffle_ps(sizes[0], sizes[1], 0xdd));
    const __m256 halves[2] = {_mm512_castps512_ps256(pairs), _mm512_extractf32x8_ps(pairs, 1)};
    const __m256 quads =
        _mm256_max_ps(_mm256_shuffle_ps(halves[0], halves[1], 0x88), _mm256_shuffle_ps(halves[0], halves[1], 0xdd));
    const __m256i numbers = _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
    const __m256i keys =
        _mm256_ternarylogic_epi32(_mm256_castps_si256(quads), _mm256_set1_epi32(QUAD_BITS), numbers, 0xba);  // a & ~b | c
    const __m128i first = _mm256_castsi256_si128(keys), second = _mm256_extracti128_si256(keys, 1);
    const __m128i largest = largest_lane(_mm_max_epu32(first, second));
    const __m128i others = _mm_max_epu32(_mm_andnot_si128(_mm_cmpeq_epi32(first, largest), first),
                                         _mm_andnot_si128(_mm_cmpeq_epi32(second, largest), second));
    const uint32_t key = static_cast<uint32_t>(_mm_cvtsi128_si32(largest));
    const Step step = find_step(key, static_cast<uint32_t>(_mm_cvtsi128_si32(largest_lane(others))));
    const __m512 inverse = _mm512_set1_ps(step.inverse);
    alignas(64) int32_t wide[BLOCK];
    __m512i codes[2];
    for (int half = 0; half < 2; ++half) {
        codes[half] = _mm512_cvtps_epi32(_mm512_mul_ps(values[half], inverse));
        _mm512_store_si512(wide + 16 * half, codes[half]);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out.codes + 16 * half), _mm512_cvtsepi32_epi8(codes[half]));
    }
    const __m256i sums = _mm256_hadd_epi32(add_halves(codes[0]), add_halves(codes[1]));  // two of each, and again
    __m128i both = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    both = _mm_hadd_epi32(both, both);
    const int32_t quad = key & QUAD_BITS;
    const __m128i four = _mm_load_si128(reinterpret_cast<const __m128i*>(wide + 4 * quad));
    const __m128i high = _mm_srai_epi32(_mm_add_epi32(four, _mm_set1_epi32(1 << HIGH_BITS >> 1)), HIGH_BITS);
    const __m128i low = _mm_sub_epi32(four, _mm_slli_epi32(high, HIGH_BITS));
    _mm_storeu_si32(out.high, _mm_cvtepi32_epi8(high));
    _mm_storeu_si32(out.codes + 4 * quad, _mm_cvtepi32_epi8(low));
    out.quad = static_cast<int16_t>(quad);
    out.level = step.level;
    out.scale = step.scale;
    put_sums(out, _mm_cvtsi128_si32(both), _mm_extract_epi32(both, 1));
}

// Four blocks at a time: element k of a register is about block k, so that most of the work is done once for all of them.
#define PENSTOCK_QUANTIZES_FOUR

// The lanes of 128 bits of a, b, c and d as columns: element k of a lane of rows[i] is element i of that lane of the kth.
inline void transpose(__m512i a, __m512i b, __m512i c, __m512i d, __m512i* rows) {
    const __m512i first = _mm512_unpacklo_epi32(a, b), second = _mm512_unpackhi_epi32(a, b);
    const __m512i third = _mm512_unpacklo_epi32(c, d), fourth = _mm512_unpackhi_epi32(c, d);
    rows[0] = _mm512_unpacklo_epi64(first, third);
    rows[1] = _mm512_unpackhi_epi64(first, third);
    rows[2] = _mm512_unpacklo_epi64(second, fourth);
    rows[3] = _mm512_unpackhi_epi64(second, fourth);
}

// By block, the largest of the 4 x 4 numbers in two registers of lanes of quads.
inline __m512i largest_quad(__m512i low, __m512i high) {
    __m512i x = _mm512_max_epu32(low, high);
    x = _mm512_max_epu32(x, _mm512_shuffle_i64x2(x, x, 0x4e));
    return _mm512_max_epu32(x, _mm512_shuffle_i64x2(x, x, 0xb1));
}

inline __m128i add_quads(__m512i x) {
    const __m256i half = add_halves(x);
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

// How the activations of four blocks become codes.
struct alignas(16) FourSteps {
    float inverses[4], scales[4];
    int32_t quads[4], levels[4];
};

inline FourSteps find_four_steps(const float* x) {
    const __m512i sign = _mm512_set1_epi32(static_cast<int32_t>(0x80000000));
    __m512i keys[2];  // lane q: quads q, and 4 + q
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
        __m512i sizes[4], rows[4];
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) sizes[k] = _mm512_andnot_si512(sign, _mm512_loadu_si512(x + k * BLOCK + 16 * half));
        transpose(sizes[0], sizes[1], sizes[2], sizes[3], rows);
        const __m512i largest = _mm512_max_epu32(_mm512_max_epu32(rows[0], rows[1]), _mm512_max_epu32(rows[2], rows[3]));
        const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        const __m512i numbers = half ? _mm512_or_si512(lanes, _mm512_set1_epi32(4)) : lanes;
        keys[half] = _mm512_ternarylogic_epi32(largest, _mm512_set1_epi32(QUAD_BITS), numbers, 0xba);  // a & ~b | c
    }
    const __m512i largest = largest_quad(keys[0], keys[1]);
    const __m512i others = largest_quad(_mm512_maskz_mov_epi32(_mm512_cmpneq_epi32_mask(keys[0], largest), keys[0]),
                                        _mm512_maskz_mov_epi32(_mm512_cmpneq_epi32_mask(keys[1], largest), keys[1]));
    const __m128i key = _mm512_castsi512_si128(largest);
    const __m128 wide = _mm_mul_ps(_mm_castsi128_ps(key), _mm_set1_ps(MOST / MOST_WIDE));  // as `find_step`
    const __m128 exact = _mm_max_ps(wide, _mm_castsi128_ps(_mm512_castsi512_si128(others)));
    const __mmask8 some = _mm_cmp_ps_mask(exact, _mm_set1_ps(SMALLEST), _CMP_GE_OQ);
    const __m128i raised = _mm_add_epi32(_mm_castps_si128(exact), _mm_set1_epi32(TO_NEXT_LEVEL));
    const __m128i bits = _mm_andnot_si128(_mm_set1_epi32(BELOW_LEVEL), raised);
    const __m128 most = _mm_castsi128_ps(bits);
    const __m128i levels = _mm_and_si128(_mm_srli_epi32(bits, LEVEL_SHIFT), _mm_set1_epi32(NUM_LEVELS - 1));
    FourSteps steps;
    _mm_store_ps(steps.inverses, _mm_maskz_div_ps(some, _mm_set1_ps(MOST), most));
    _mm_store_ps(steps.scales, _mm_mask_mul_ps(_mm_set1_ps(level_factor(0)), some, most, _mm_set1_ps(1.0f / MOST)));
    _mm_store_si128(reinterpret_cast<__m128i*>(steps.quads), _mm_and_si128(key, _mm_set1_epi32(QUAD_BITS)));
    _mm_store_si128(reinterpret_cast<__m128i*>(steps.levels), _mm_maskz_mov_epi32(some, levels));
    return steps;
}

inline void quantize_four_blocks(const float* x, const FourSteps& steps, Quantized* const* out) {
    alignas(64) int16_t words[4][BLOCK];  // of a block: quads 0, 4, 1, 5, 2, 6, 3, 7
    __m512i codes[4], pairs[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k, x += BLOCK) {
        const __m512 factor = _mm512_set1_ps(steps.inverses[k]);
        codes[k] = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), factor)),
                                      _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), factor)));
        _mm512_store_si512(words[k], codes[k]);
        pairs[k] = _mm512_madd_epi16(codes[k], _mm512_set1_epi16(1));
    }
    // Lanes of a block are 16 bytes, four quads of each half; two blocks fill a register.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#pragma GCC unroll 2
    for (int k = 0; k < 4; k += 2) {
        const __m512i both = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(codes[k], codes[k + 1]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[k]->codes), _mm512_castsi512_si256(both));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[k + 1]->codes), _mm512_extracti64x4_epi64(both, 1));
    }
    __m512i sums[4];
    transpose(pairs[0], pairs[1], pairs[2], pairs[3], sums);
    const __m128i first = add_quads(_mm512_add_epi32(sums[0], sums[1]));
    const __m128i all = _mm_add_epi32(first, add_quads(_mm512_add_epi32(sums[2], sums[3])));
    const __m128 scale = _mm_load_ps(steps.scales);
    __m128 heads[4] = {scale, _mm_mul_ps(scale, _mm_cvtepi32_ps(all)),
                       _mm_castsi128_ps(_mm_sub_epi32(_mm_setzero_si128(), all)),
                       _mm_castsi128_ps(_mm_sub_epi32(_mm_setzero_si128(), first))};
    _MM_TRANSPOSE4_PS(heads[0], heads[1], heads[2], heads[3]);
    alignas(16) int8_t parts[4][8];  // of a quad: high, low
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
        const int32_t quad = steps.quads[k];
        const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(words[k] + 8 * (quad & 3) + (quad & 4)));
        const __m128i high = _mm_srai_epi16(_mm_add_epi16(four, _mm_set1_epi16(1 << HIGH_BITS >> 1)), HIGH_BITS);
        const __m128i low = _mm_sub_epi16(four, _mm_slli_epi16(high, HIGH_BITS));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(parts[k]), _mm_packs_epi16(_mm_unpacklo_epi64(high, low), high));
        _mm_storeu_ps(&out[k]->scale, heads[k]);
        std::memcpy(out[k]->high, parts[k], 4);
        std::memcpy(out[k]->codes + 4 * quad, parts[k] + 4, 4);
        out[k]->quad = static_cast<int16_t>(quad);
        out[k]->level = static_cast<int16_t>(steps.levels[k]);
    }
}

}  // namespace
}  // namespace penstock::PENSTOCK_ISA
