// Many tokens with AVX-512 VNNI: two panels, a strip, times four tokens at a time. Four inputs are loaded for two products,
// and codes are unpacked once for all tokens, as many blocks at a time as stay in the first cache. Results are bitwise those
// of `packed_tile`: integers are exact, and the float sums run in the same order.
#pragma once

#include "linear.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr int STRIP = 2, STRIP_TOKENS = 4;
constexpr int64_t STRIP_PASS = 256;  // tokens
constexpr float SMALLEST_HALF = 0x1p-24f;
constexpr int64_t STRIP_BLOCKS = 16;
constexpr int64_t LEVEL_TOKENS = 64;  // from so many on, scales are prepared for every level of activations: measured

// Some blocks of a strip as the products read them. Codes of 8 bits are read where they are.
struct alignas(64) Strip {
    uint8_t unpacked[STRIP][STRIP_BLOCKS * 512];
    union {
        int32_t scale_bits[STRIP_BLOCKS][STRIP][NUM_LEVELS][PANEL];  // by level: see `put_scale_bits`
        float scales[STRIP_BLOCKS][STRIP][PANEL];                    // for too few tokens to make that worth while
    };
    float offsets[STRIP_BLOCKS][STRIP][PANEL];
    const uint8_t* codes[STRIP];  // [blocks][8][16][4]
};

// The bits of scale * level_factor(level), less those of the factor: with the bits of an activation's scale of that level
// added, those of the product of both scales, to the last bit. They differ by whole steps of the exponent. A scale of 0
// becomes the smallest that a weight can have: its codes are zeros.
inline void put_scale_bits(__m512 scale, int32_t (*bits)[PANEL]) {
    const __m512 some = _mm512_mask_mov_ps(scale, _mm512_cmp_ps_mask(scale, _mm512_setzero_ps(), _CMP_EQ_OQ),
                                           _mm512_set1_ps(SMALLEST_HALF));
    for (int level = 0; level < NUM_LEVELS; ++level) {
        const __m512 factor = _mm512_set1_ps(level_factor(level));
        const __m512i product = _mm512_castps_si512(_mm512_mul_ps(some, factor));
        _mm512_store_si512(bits[level], _mm512_sub_epi32(product, _mm512_castps_si512(factor)));
    }
}

// Blocks `begin` to `end` of the two panels from `panel` on.
template <int KIND, bool LEVELS>
void read_strip(const Segment& segment, int64_t panel, int64_t blocks, int64_t begin, int64_t end, Strip& strip) {
    constexpr bool NIBBLES = KIND == U4 || KIND == U4_OFFSET, OFFSET = KIND == U4_OFFSET || KIND == U8_OFFSET;
    const __m512i low = _mm512_set1_epi8(15);
    for (int p = 0; p < STRIP; ++p) {
        const int64_t first = (panel + p) * blocks + begin;
        const uint8_t* packed = static_cast<const uint8_t*>(segment.codes) + first * (NIBBLES ? 256 : 512);
        strip.codes[p] = NIBBLES ? strip.unpacked[p] : packed;
        for (int64_t b = 0; b < end - begin; ++b) {
            const __m512 scale = halves(segment.scales + (first + b) * PANEL);
            if (LEVELS) put_scale_bits(scale, strip.scale_bits[b][p]);
            else _mm512_store_ps(strip.scales[b][p], scale);
            if (OFFSET) _mm512_store_ps(strip.offsets[b][p], halves(segment.offsets + (first + b) * PANEL));
            if (!NIBBLES) continue;
            uint8_t* to = strip.unpacked[p] + b * 512;
            for (int q = 0; q < 4; ++q) {
                const __m512i pair = _mm512_loadu_si512(packed + b * 256 + 64 * q);
                _mm512_store_si512(to + 64 * q, _mm512_and_si512(pair, low));
                _mm512_store_si512(to + 256 + 64 * q, _mm512_and_si512(_mm512_srli_epi16(pair, 4), low));
            }
        }
    }
}

// Adds the products of `blocks` blocks with four tokens to `sums` [tokens][32], or writes them there if they are the row's
// first ones. `stride` is the number of blocks of a row of x.
template <int KIND, bool LEVELS>
void strip_tile(const Strip& strip, int64_t blocks, const Quantized* x, int64_t stride, bool first_ones, float* sums) {
    constexpr bool NIBBLES = KIND == U4 || KIND == U4_OFFSET, OFFSET = KIND == U4_OFFSET || KIND == U8_OFFSET;
    constexpr int T = STRIP_TOKENS;
    const uint8_t* codes[STRIP] = {strip.codes[0], strip.codes[1]};
    __m512 total[T][STRIP];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
        for (int p = 0; p < STRIP; ++p)
            total[t][p] = first_ones ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + (t * STRIP + p) * PANEL);
    for (int64_t b = 0; b < blocks; ++b, codes[0] += 512, codes[1] += 512) {
        __m512i products[T][STRIP], others[T][STRIP];  // of even and odd quads: one chain would wait for itself
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const __m512i zeros = _mm512_slli_epi32(_mm512_set1_epi32(x[t * stride + b].minus_sum), NIBBLES ? 3 : 7);
            for (int p = 0; p < STRIP; ++p) {
                products[t][p] = OFFSET ? _mm512_setzero_si512() : zeros;
                others[t][p] = _mm512_setzero_si512();
            }
        }
#pragma GCC unroll 8
        for (int q = 0; q < 8; ++q) {
            const __m512i first = _mm512_loadu_si512(codes[0] + 64 * q), second = _mm512_loadu_si512(codes[1] + 64 * q);
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                const __m512i four = broadcast(x[t * stride + b].codes + 4 * q);
                __m512i* sum = q % 2 ? others[t] : products[t];
                sum[0] = _mm512_dpbusd_epi32(sum[0], first, four);
                sum[1] = _mm512_dpbusd_epi32(sum[1], second, four);
            }
            if (q > 0) continue;
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                const Quantized& a = x[t * stride + b];
                const __m512i high = broadcast(a.high);
#pragma GCC unroll 2
                for (int p = 0; p < STRIP; ++p) {
                    const __m512i quad = _mm512_loadu_si512(codes[p] + 64 * a.quad);
                    const __m512i some = _mm512_slli_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), quad, high), HIGH_BITS);
                    others[t][p] = _mm512_add_epi32(others[t][p], some);
                }
            }
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const Quantized& a = x[t * stride + b];
#pragma GCC unroll 2
            for (int p = 0; p < STRIP; ++p) {
                const __m512 scale = _mm512_set1_ps(a.scale);
                const __m512 factor =
                    LEVELS ? _mm512_castsi512_ps(_mm512_add_epi32(_mm512_load_si512(strip.scale_bits[b][p][a.level]),
                                                                  _mm512_castps_si512(scale)))
                           : _mm512_mul_ps(_mm512_load_ps(strip.scales[b][p]), scale);
                const __m512 product = _mm512_cvtepi32_ps(_mm512_add_epi32(products[t][p], others[t][p]));
                total[t][p] = _mm512_fmadd_ps(product, factor, total[t][p]);
                if (!OFFSET) continue;
                const __m512 offset = _mm512_load_ps(strip.offsets[b][p]);
                total[t][p] = _mm512_fmadd_ps(offset, _mm512_set1_ps(a.scaled_sum), total[t][p]);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
        for (int p = 0; p < STRIP; ++p) _mm512_storeu_ps(sums + (t * STRIP + p) * PANEL, total[t][p]);
}

// Fetches the `part`th of `parts` equal shares of `count` blocks, from `first` on, of two panels.
// Always inline: GCC drops calls of functions that only prefetch.
template <int KIND, bool LEVELS>
__attribute__((always_inline)) inline void fetch_strip(const Segment& segment, int64_t first, int64_t blocks, int64_t count,
                                                       int64_t part, int64_t parts) {
    constexpr bool NIBBLES = KIND == U4 || KIND == U4_OFFSET, OFFSET = KIND == U4_OFFSET || KIND == U8_OFFSET;
    // Measured: with few tokens, codes of 8 bits would push activations out of the first cache (4%).
    constexpr _mm_hint WHERE = NIBBLES || LEVELS ? _MM_HINT_T0 : _MM_HINT_T1;
    const uint8_t* codes = static_cast<const uint8_t*>(segment.codes);
    for (int64_t b = count * part / parts; b < count * (part + 1) / parts; ++b) {
        for (int p = 0; p < STRIP; ++p) {
            const int64_t block = first + p * blocks + b;
            for (int line = 0; line < (NIBBLES ? 4 : 8); ++line)
                _mm_prefetch(codes + block * (NIBBLES ? 256 : 512) + 64 * line, WHERE);
            if (block % 2) continue;
            _mm_prefetch(segment.scales + block * PANEL, _MM_HINT_T0);
            if (OFFSET) _mm_prefetch(segment.offsets + block * PANEL, _MM_HINT_T0);
        }
    }
}

// The two panels from `panel` on, for the first `tokens`, a multiple of STRIP_TOKENS.
template <int KIND, bool LEVELS>
void strip(const Work& work, const Segment& segment, int64_t panel, int64_t first_row, int64_t tokens) {
    alignas(64) Strip read;
    alignas(64) float sums[STRIP_PASS][STRIP * PANEL];
    const int64_t blocks = work.blocks, chunks = (blocks + STRIP_BLOCKS - 1) / STRIP_BLOCKS, row = panel * PANEL;
    const int64_t rows = smaller(segment.rows - row, STRIP * PANEL);
    for (int64_t begin = 0; begin < tokens; begin += STRIP_PASS) {
        const int64_t end = smaller(begin + STRIP_PASS, tokens);
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const bool last = chunk + 1 == chunks;
            const int64_t block = blocks * chunk / chunks, count = blocks * (chunk + 1) / chunks - block;
            const int64_t next = last ? (panel + STRIP) * blocks : panel * blocks + block + count;
            read_strip<KIND, LEVELS>(segment, panel, blocks, block, block + count, read);
            for (int64_t token = begin; token < end; token += STRIP_TOKENS) {
                float* some = sums[chunks == 1 ? 0 : token - begin];
                fetch_strip<KIND, LEVELS>(segment, next, blocks, count, (token - begin) / STRIP_TOKENS,
                                  (end - begin) / STRIP_TOKENS);
                strip_tile<KIND, LEVELS>(read, count, work.quantized + token * blocks + block, blocks, chunk == 0, some);
                for (int t = 0; last && t < STRIP_TOKENS; ++t)
                    put<STRIP * PANEL>(work, token + t, first_row + row, rows, some + t * STRIP * PANEL);
            }
        }
    }
}

}  // namespace
}  // namespace penstock::PENSTOCK_ISA
