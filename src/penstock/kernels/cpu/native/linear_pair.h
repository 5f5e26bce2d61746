// A few tokens with AVX-512 VNNI: two panels times up to four tokens at a time, with codes as they are stored. Loads are what a
// tile of one panel waits for: here four inputs are loaded for two products. Results are bitwise those of `packed_tile`:
// integers are exact, and the float sums run in the same order.
#pragma once

#include <cpuid.h>

#include "linear.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr int PAIR = 2, PAIR_TOKENS = 4;

// Shift of a byte of two 4-bit codes, by the number of the quad, that makes that quad's code its upper half.
alignas(64) constexpr int32_t TO_UPPER[8] = {4, 4, 4, 4, 0, 0, 0, 0};

// How a row's panels are cut into pieces, each of which is multiplied with all tokens before the next one.
struct Pieces {
    bool into_second_cache;  // where the next piece is fetched to, while this one is multiplied; otherwise into the first
    int64_t bytes;           // of a panel's codes
    int64_t short_row;       // bytes of a panel's codes up to which they are one piece
    // The least tokens for pairs. Measured: fewer wait for memory, which tiles of one panel read as fast or faster.
    int64_t from_4_bit, from_8_bit, from_8_bit_long;  // long: rows of several pieces
};

// Zen 4 computes 512-bit operations in two halves. Measured there: products do not wait for memory if it is fetched into the
// second cache, in pieces of 16 KiB or more, and do wait if it is fetched into the first.
constexpr Pieces OF_ZEN_4{true, 32768, 32768, 3, 3, 3};
// Measured on Zen 5: pieces of a few blocks cost more than they gain; where two threads share a core and its first cache, four
// tokens of long rows wait for memory.
constexpr Pieces OF_OTHERS{false, 4096, 9216, 3, 2, 5};

// Zen 4 is the one processor of its family, 25, that has AVX-512.
bool is_zen_4() {
    unsigned a, b, c, d;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || c != signature_AMD_ecx || d != signature_AMD_edx)
        return false;
    return __get_cpuid(1, &a, &b, &c, &d) && (a >> 8 & 15) + (a >> 20 & 255) == 25;
}

// `fill` chooses them. Nothing here may run while the library is loaded: this code has instructions that the machine may lack.
const Pieces* pieces = &OF_OTHERS;

constexpr int64_t STRIP_FROM = 48;  // from so many tokens on there are strips

// Some blocks of a panel. Those of the next panel lie behind all blocks of this one.
struct PanelBlocks {
    const uint8_t* codes;
    const uint16_t* scales;
    const uint16_t* offsets;
};

// What is fetched while others are multiplied: pieces of two panels. Measured: whole rows line by line as they lie in memory, one
// stream for the processor's own prefetchers, and pieces of longer rows from both panels in turns.
struct Fetch {
    PanelBlocks blocks;
    int64_t from, each;  // lines of codes: where a tile begins, and how many it fetches with a block
    bool factors;        // whether it fetches scales and offsets, too
    bool whole;          // rows
    bool into_second_cache;

    void line(const void* address) const {
        if (into_second_cache) _mm_prefetch(address, _MM_HINT_T1);
        else _mm_prefetch(address, _MM_HINT_T0);
    }
    // The line of a byte of two pieces, which have `half` bytes each and begin `stride` bytes apart.
    void line_of_two(const void* pieces, int64_t byte, int64_t half, int64_t stride) const {
        line(static_cast<const char*>(pieces) + byte + (byte >= half ? stride - half : 0));
    }
};

// Adds the products of `count` blocks with T tokens to `sums` [T][32], or writes them there if they are the row's first ones.
// `blocks` is the number of blocks of a row of the matrix and of x.
template <int KIND, int T>
void pair_tile(PanelBlocks at, const Fetch& fetch, int64_t count, int64_t blocks, const Quantized* x, bool first_ones,
               float* sums) {
    constexpr bool NIBBLES = KIND == U4 || KIND == U4_OFFSET, OFFSET = KIND == U4_OFFSET || KIND == U8_OFFSET;
    constexpr bool HALVES = KIND == U8_HALVES;
    constexpr int64_t BYTES = NIBBLES ? 256 : 512, SCALES = HALVES ? 2 * PANEL : PANEL;
    const __m512i low = _mm512_set1_epi8(15), upper = _mm512_set1_epi8(static_cast<char>(0xf0));
    __m512 total[T][PAIR];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
        for (int p = 0; p < PAIR; ++p)
            total[t][p] = first_ones ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + (t * PAIR + p) * PANEL);
    for (int64_t b = 0; b < count; ++b, ++x, at.codes += BYTES, at.scales += SCALES) {
        if (fetch.whole) {
            const int64_t line = fetch.from + b * fetch.each, end = smaller(line + fetch.each, PAIR * count * BYTES / 64);
            for (int64_t byte = line * 64; byte < end * 64; byte += 64)
                fetch.line_of_two(fetch.blocks.codes, byte, count * BYTES, blocks * BYTES);
        } else {
            constexpr int64_t LINES = BYTES / 64;
            const int64_t line = fetch.from / count, end = smaller(line + fetch.each, PAIR * LINES);
            for (int64_t at = line; at < end; ++at)
                fetch.line(fetch.blocks.codes + (at / LINES * blocks + b) * BYTES + at % LINES * 64);
        }
        if (fetch.factors) {
            constexpr int64_t OF_SCALES = SCALES * sizeof(uint16_t), OF_OFFSETS = PANEL * sizeof(uint16_t);
            for (int64_t byte = PAIR * b * OF_SCALES; byte < PAIR * (b + 1) * OF_SCALES; byte += 64)
                fetch.line_of_two(fetch.blocks.scales, byte, count * OF_SCALES, blocks * OF_SCALES);
            if (OFFSET)
                fetch.line_of_two(fetch.blocks.offsets, PAIR * b * OF_OFFSETS, count * OF_OFFSETS, blocks * OF_OFFSETS);
        }
        __m512i products[T][PAIR], others[T][PAIR];  // of the first and the last 16 inputs: one chain would wait for itself
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const Quantized& a = x[t * blocks];
            const auto zeros = [](int32_t minus) { return _mm512_slli_epi32(_mm512_set1_epi32(minus), NIBBLES ? 3 : 7); };
            for (int p = 0; p < PAIR; ++p) {
                products[t][p] = OFFSET ? _mm512_setzero_si512() : zeros(HALVES ? a.minus_first : a.minus_sum);
                others[t][p] = HALVES ? zeros(a.minus_sum - a.minus_first) : _mm512_setzero_si512();
            }
        }
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
            __m512i first[PAIR], last[PAIR];
#pragma GCC unroll 2
            for (int p = 0; p < PAIR; ++p) {
                const uint8_t* codes = at.codes + p * blocks * BYTES + 64 * q;
                first[p] = last[p] = _mm512_loadu_si512(codes);
                if (!NIBBLES) last[p] = _mm512_loadu_si512(codes + 256);
                if (NIBBLES) first[p] = _mm512_and_si512(first[p], low);
                if (NIBBLES) last[p] = _mm512_and_si512(_mm512_srli_epi16(last[p], 4), low);
            }
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                const __m512i four = broadcast(x[t * blocks].codes + 4 * q);
                for (int p = 0; p < PAIR; ++p) products[t][p] = _mm512_dpbusd_epi32(products[t][p], first[p], four);
            }
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                const __m512i four = broadcast(x[t * blocks].codes + 16 + 4 * q);
                for (int p = 0; p < PAIR; ++p) others[t][p] = _mm512_dpbusd_epi32(others[t][p], last[p], four);
            }
            if (q != 1) continue;
            // Measured: the high codes, whose weights wait for the quad's number, are best in the middle.
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                const Quantized& a = x[t * blocks];
                const __m512i high = broadcast(a.high), shift = _mm512_set1_epi32(TO_UPPER[a.quad]);
#pragma GCC unroll 2
                for (int p = 0; p < PAIR; ++p) {
                    static_assert(HIGH_BITS == 4, "the upper half of a byte counts as much as a high code");
                    const int64_t quad = NIBBLES ? a.quad & 3 : a.quad;
                    const __m512i codes = _mm512_loadu_si512(at.codes + p * blocks * BYTES + 64 * quad);
                    if (NIBBLES) {
                        const __m512i raised = _mm512_and_si512(_mm512_sllv_epi32(codes, shift), upper);
                        others[t][p] = _mm512_dpbusd_epi32(others[t][p], raised, high);
                    } else {
                        __m512i some = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, high);
                        some = _mm512_slli_epi32(some, HIGH_BITS);
                        const __mmask16 first_half = HALVES && a.quad < 4 ? 0xffff : 0;
                        if (HALVES) products[t][p] = _mm512_mask_add_epi32(products[t][p], first_half, products[t][p], some);
                        others[t][p] = _mm512_mask_add_epi32(others[t][p], ~first_half, others[t][p], some);
                    }
                }
            }
        }
#pragma GCC unroll 2
        for (int p = 0; p < PAIR; ++p) {
            const uint16_t* scales = at.scales + p * blocks * SCALES;
            const __m512 scale = halves(scales), other_scale = HALVES ? halves(scales + PANEL) : scale;
            const __m512 offset = OFFSET ? halves(at.offsets + p * blocks * PANEL) : _mm512_setzero_ps();
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                const __m512 of_x = _mm512_set1_ps(x[t * blocks].scale);
                if (!HALVES) products[t][p] = _mm512_add_epi32(products[t][p], others[t][p]);
                const __m512 product = _mm512_cvtepi32_ps(products[t][p]), other = _mm512_cvtepi32_ps(others[t][p]);
                total[t][p] = _mm512_fmadd_ps(product, _mm512_mul_ps(scale, of_x), total[t][p]);
                if (HALVES) total[t][p] = _mm512_fmadd_ps(other, _mm512_mul_ps(other_scale, of_x), total[t][p]);
                if (OFFSET) total[t][p] = _mm512_fmadd_ps(offset, _mm512_set1_ps(x[t * blocks].scaled_sum), total[t][p]);
            }
        }
        if (OFFSET) at.offsets += PANEL;
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
        for (int p = 0; p < PAIR; ++p) _mm512_storeu_ps(sums + (t * PAIR + p) * PANEL, total[t][p]);
}

// Whether these are tokens for pairs.
template <int KIND>
bool goes_in_pairs(const Work& work) {
    constexpr bool NIBBLES = KIND == U4 || KIND == U4_OFFSET;
    const int64_t from_8_bit = work.blocks * 512 > pieces->short_row ? pieces->from_8_bit_long : pieces->from_8_bit;
    return work.tokens >= (NIBBLES ? pieces->from_4_bit : from_8_bit) && work.tokens < STRIP_FROM;
}

// The two panels from `panel` on, for the tokens from `from` on: fewer than STRIP_FROM.
template <int KIND>
void pair(const Work& work, const Segment& segment, int64_t panel, int64_t first_row, int64_t from) {
    constexpr bool NIBBLES = KIND == U4 || KIND == U4_OFFSET, OFFSET = KIND == U4_OFFSET || KIND == U8_OFFSET;
    constexpr int64_t BYTES = NIBBLES ? 256 : 512, LINES = PAIR * BYTES / 64;
    constexpr int64_t SCALES = KIND == U8_HALVES ? 2 * PANEL : PANEL;
    alignas(64) float sums[STRIP_FROM][PAIR * PANEL];
    const int64_t blocks = work.blocks, row = panel * PANEL;
    const int64_t rows = smaller(segment.rows - row, PAIR * PANEL), tokens = work.tokens - from;
    const int64_t tiles = (tokens + PAIR_TOKENS - 1) / PAIR_TOKENS;
    const int64_t bytes = blocks * BYTES, chunks = bytes <= pieces->short_row ? 1 : (bytes + pieces->bytes - 1) / pieces->bytes;
    const auto blocks_at = [&](int64_t block) -> PanelBlocks {
        return {static_cast<const uint8_t*>(segment.codes) + block * BYTES, segment.scales + block * SCALES,
                OFFSET ? segment.offsets + block * PANEL : nullptr};
    };
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t begin = blocks * chunk / chunks, end = blocks * (chunk + 1) / chunks;
        const PanelBlocks here = blocks_at(panel * blocks + begin);
        const PanelBlocks next = blocks_at(chunk + 1 < chunks ? panel * blocks + end : (panel + PAIR) * blocks);
        for (int64_t tile = 0; tile < tiles; ++tile) {
            const int64_t token = tile * PAIR_TOKENS;
            const Quantized* x = work.quantized + (from + token) * blocks + begin;
            const int64_t each = (LINES + tiles - 1) / tiles;
            const Fetch fetch{next, tile * each * (end - begin), each, tile == 0, chunks == 1, pieces->into_second_cache};
            const auto add = [&](auto tile_of) { tile_of(here, fetch, end - begin, blocks, x, chunk == 0, sums[token]); };
            switch (tokens - token) {
                case 1: add(pair_tile<KIND, 1>); break;
                case 2: add(pair_tile<KIND, 2>); break;
                case 3: add(pair_tile<KIND, 3>); break;
                default: add(pair_tile<KIND, PAIR_TOKENS>);
            }
        }
    }
    for (int64_t token = 0; token < tokens; ++token) put<PAIR * PANEL>(work, from + token, first_row + row, rows, sums[token]);
}

}  // namespace
}  // namespace penstock::PENSTOCK_ISA
