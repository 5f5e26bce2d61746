// Divides the panels of a matrix among callers and the tokens into tiles; linear_<instruction set>.h computes a tile.
#include <cstring>

#include "kernels.h"

namespace penstock::PENSTOCK_ISA {
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

constexpr float SMALLEST = 1e-25f;  // blocks of smaller numbers are zeros: their scale times a weight's must be a normal number
// Activations that one pass over a thread's panels works on; half of a usual L2 cache.
constexpr int64_t PASS_BYTES = 512 * 1024;
// Panels that are multiplied with all tokens of a pass together, if these are many.
constexpr int64_t MAX_GROUP = 8, GROUP_BYTES = 128 * 1024;

float from_half(uint16_t half) {
    uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, rest = half & 0x7fff, bits;
    if (rest >= 0x7c00) {
        bits = 0x7f800000 | (rest & 0x3ff) << 13;
    } else if (rest >= 0x400) {
        bits = (rest << 13) + 0x38000000;
    } else {
        float small = static_cast<float>(rest) * 0x1p-24f;
        std::memcpy(&bits, &small, 4);
    }
    bits |= sign;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

float from_bfloat(uint16_t bfloat) {
    uint32_t bits = static_cast<uint32_t>(bfloat) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

float stored(const Segment& segment, int64_t at) {
    if (segment.kind == F32) return static_cast<const float*>(segment.codes)[at];
    uint16_t bits = static_cast<const uint16_t*>(segment.codes)[at];
    return segment.kind == F16 ? from_half(bits) : from_bfloat(bits);
}

// The largest size of each of a block's quads is compared as an integer whose lowest bits are replaced by the quad's number:
// no two are equal, and all instruction sets find the same ones.
constexpr uint32_t QUAD_BITS = 7;

// How the activations of a block become codes.
struct Step {
    float inverse, scale;
    int16_t level;
};

// Below the bits of a float that decide the level.
constexpr int LEVEL_SHIFT = 23 - LEVEL_BITS;
constexpr uint32_t BELOW_LEVEL = (1u << LEVEL_SHIFT) - 1;
constexpr uint32_t TO_NEXT_LEVEL = BELOW_LEVEL - QUAD_BITS;  // the quad's number does not count

// Given the largest of these integers and the one after it.
inline Step find_step(uint32_t largest, uint32_t other) {
    float wide, narrow;
    std::memcpy(&wide, &largest, 4);
    std::memcpy(&narrow, &other, 4);
    wide *= MOST / MOST_WIDE;
    float most = wide > narrow ? wide : narrow;
    if (!(most >= SMALLEST)) return {0.0f, level_factor(0), 0};
    uint32_t bits;
    std::memcpy(&bits, &most, 4);
    bits = (bits + TO_NEXT_LEVEL) & ~BELOW_LEVEL;  // up: no code exceeds MOST
    std::memcpy(&most, &bits, 4);
    return {MOST / most, most * (1.0f / MOST), static_cast<int16_t>(bits >> LEVEL_SHIFT & (NUM_LEVELS - 1))};
}

// Given the sums of the codes of each 16.
inline void put_sums(Quantized& out, int32_t first, int32_t second) {
    out.scaled_sum = out.scale * static_cast<float>(first + second);
    out.minus_sum = -(first + second);
    out.minus_first = -first;
}

// Fills in all but the other quads' codes, given all codes and their sums of each 16.
[[maybe_unused]] inline void finish(Quantized& out, uint32_t largest, const Step& step, const int32_t* codes, int32_t first,
                                    int32_t second) {
    const int32_t quad = largest & QUAD_BITS;
    out.quad = static_cast<int16_t>(quad);
    out.level = step.level;
    out.scale = step.scale;
    put_sums(out, first, second);
    for (int i = 0; i < 4; ++i) {
        const int32_t code = codes[4 * quad + i], high = (code + 8) >> HIGH_BITS;
        out.high[i] = static_cast<int8_t>(high);
        out.codes[4 * quad + i] = static_cast<int8_t>(code - high * 16);
    }
}

// The arguments of one call of `linear`.
struct Work {
    const float* x;
    const Quantized* quantized;
    int64_t cols, blocks, tokens;
    const float* bias;
    float* out;
    int64_t out_stride;
    bool accumulate;
};

template <int WIDTH>
inline void put(const Work& work, int64_t token, int64_t row, int64_t rows, const float* sums) {
    float* out = work.out + token * work.out_stride + row;
    const float* bias = work.bias ? work.bias + row : nullptr;
    if (rows == WIDTH && !bias) {
        for (int i = 0; i < WIDTH; ++i) out[i] = work.accumulate ? out[i] + sums[i] : sums[i];
        return;
    }
    for (int64_t i = 0; i < rows; ++i) {
        float value = bias ? sums[i] + bias[i] : sums[i];
        out[i] = work.accumulate ? out[i] + value : value;
    }
}

}  // namespace
}  // namespace penstock::PENSTOCK_ISA

#if defined(__AVX512F__)
#include "linear_avx512.h"
#ifdef __AVX512VNNI__
#define PENSTOCK_PAIRS
#include "linear_pair.h"
#include "linear_strip.h"
#endif
#elif defined(__AVX2__)
#include "linear_avx2.h"
#elif defined(PENSTOCK_NEON)
#include "linear_neon.h"
#else
#include "linear_portable.h"
#endif

namespace penstock::PENSTOCK_ISA {
namespace {

// `count` blocks of each of `tokens`, which lie one after the other in x, and `stride` apart in `out`.
void quantize_whole_blocks(const float* x, int64_t tokens, int64_t count, Quantized* out, int64_t stride) {
    int64_t block = 0, token = 0;
    const auto next = [&]() -> Quantized* {
        Quantized* at = out + token * stride + block;
        if (++block == count) block = 0, ++token;
        return at;
    };
    int64_t left = tokens * count;
#ifdef PENSTOCK_QUANTIZES_FOUR
    constexpr int64_t FOURS = 8;
    while (left >= 4) {  // in two passes: both together are a longer chain than the processor looks ahead
        const int64_t fours = smaller(left / 4, FOURS);
        FourSteps steps[FOURS];
        for (int64_t four = 0; four < fours; ++four) steps[four] = find_four_steps(x + 4 * BLOCK * four);
        for (int64_t four = 0; four < fours; ++four, left -= 4, x += 4 * BLOCK) {
            Quantized* const targets[4] = {next(), next(), next(), next()};
            quantize_four_blocks(x, steps[four], targets);
        }
    }
#endif
    for (; left > 0; --left, x += BLOCK) quantize_whole_block(x, *next());
}

void quantize(const float* x, int64_t tokens, int64_t cols, Quantized* out, int64_t stride) {
    const int64_t whole = cols / BLOCK, rest = cols % BLOCK;
    if (rest == 0) {  // blocks lie one after the other, also from one token to the next
        quantize_whole_blocks(x, tokens, whole, out, stride);
        return;
    }
    for (int64_t token = 0; token < tokens; ++token, x += cols, out += stride) {
        quantize_whole_blocks(x, 1, whole, out, stride);
        float padded[BLOCK] = {};
        std::memcpy(padded, x + whole * BLOCK, rest * sizeof(float));
        quantize_whole_block(padded, out[whole]);
    }
}

template <int KIND, int T>
void tile(const Work& work, const Segment& segment, int64_t panel, int64_t first_row, int64_t token) {
    alignas(64) float sums[T * PANEL];
    if constexpr (KIND <= BF16) {
        float_tile<KIND, T>(segment, panel, work.cols, work.x + token * work.cols, sums);
    } else {
        packed_tile<KIND, T>(segment, panel, work.blocks, work.quantized + token * work.blocks, work.blocks, sums);
    }
    int64_t left = segment.rows - panel * PANEL, rows = left < PANEL ? left : PANEL;
    for (int t = 0; t < T; ++t) put<PANEL>(work, token + t, first_row + panel * PANEL, rows, sums + t * PANEL);
}

// Panels `begin` to `end` for tiles of `T` tokens while there are so many, then of half as many.
template <int KIND, int T>
void tiles(const Work& work, const Segment& segment, int64_t begin, int64_t end, int64_t first_row, int64_t from,
           int64_t to) {
    for (; to - from >= T; from += T)
        for (int64_t panel = begin; panel < end; ++panel) tile<KIND, T>(work, segment, panel, first_row, from);
    if constexpr (T > 1) {
        if (from < to) tiles<KIND, T / 2>(work, segment, begin, end, first_row, from, to);
    }
}

// Panels `begin` to `end` of a segment for all tokens, in passes. For many tokens some panels at a time, which stay in the
// cache: panel by panel, the results of one token are written in pieces that lie far apart.
template <int KIND>
void panels(const Work& work, const Segment& segment, int64_t begin, int64_t end, int64_t first_row) {
    const int64_t tokens = work.tokens, row_bytes = work.blocks * static_cast<int64_t>(sizeof(Quantized));
#ifdef PENSTOCK_PAIRS  // half a pair at the end of a share is left to tiles
    if constexpr (KIND > BF16) {
        if (goes_in_pairs<KIND>(work))
            for (; end - begin >= PAIR; begin += PAIR) pair<KIND>(work, segment, begin, first_row, 0);
        if constexpr (KIND != U8_HALVES) {
            const int64_t rest = tokens % STRIP_TOKENS, most = tokens - rest;
            for (; tokens >= STRIP_FROM && end - begin >= PAIR; begin += PAIR) {
                if (tokens < LEVEL_TOKENS) strip<KIND, false>(work, segment, begin, first_row, most);
                else strip<KIND, true>(work, segment, begin, first_row, most);
                if (rest) pair<KIND>(work, segment, begin, first_row, most);
            }
        }
    }
#endif
    const int64_t pass = larger(PASS_BYTES / row_bytes / MAX_TILE, 1) * MAX_TILE;
    int64_t group = 1;
    while (tokens > MANY_TOKENS && group < MAX_GROUP && 2 * group * work.blocks * 512 <= GROUP_BYTES) group *= 2;
    for (int64_t from = 0; from < tokens; from += pass)
        for (int64_t panel = begin; panel < end; panel += group)
            tiles<KIND, MAX_TILE>(work, segment, panel, smaller(panel + group, end), first_row, from,
                                  smaller(from + pass, tokens));
}

using Panels = void (*)(const Work&, const Segment&, int64_t, int64_t, int64_t);
constexpr Panels PANELS[NUM_KINDS] = {panels<F32>,       panels<F16>, panels<BF16>,      panels<U4>,
                                      panels<U4_OFFSET>, panels<U8>,  panels<U8_OFFSET>, panels<U8_HALVES>};

void linear(const Matrix& matrix, const float* x, const Quantized* quantized, int64_t tokens, const float* bias,
            float* out, int64_t out_stride, bool accumulate, int64_t begin, int64_t end) {
    int64_t first_panel = 0, first_row = 0;
    Work work{x, quantized, matrix.cols, num_blocks(matrix.cols), tokens, bias, out, out_stride, accumulate};
    for (int32_t s = 0; s < matrix.num_segments; ++s) {
        const Segment& segment = matrix.segments[s];
        const int64_t count = num_panels(segment.rows);
        const int64_t from = larger(begin - first_panel, 0), to = smaller(end - first_panel, count);
        if (from < to) PANELS[segment.kind](work, segment, from, to, first_row);
        first_panel += count;
        first_row += segment.rows;
    }
}

float weight(const Segment& segment, int64_t row, int64_t col, int64_t cols) {
    int64_t panel = row / PANEL, lane = row % PANEL;
    if (segment.kind <= BF16) return stored(segment, (panel * cols + col) * PANEL + lane);
    int64_t block = panel * num_blocks(cols) + col / BLOCK, within = col % BLOCK;
    const uint8_t* codes = static_cast<const uint8_t*>(segment.codes);
    int32_t code;
    if (segment.kind == U4 || segment.kind == U4_OFFSET) {
        uint8_t byte = codes[block * 256 + within % 16 / 4 * 64 + lane * 4 + within % 4];
        code = within < 16 ? byte & 15 : byte >> 4;
    } else {
        code = codes[block * 512 + within / 4 * 64 + lane * 4 + within % 4];
    }
    if (segment.kind == U8_HALVES) {
        return from_half(segment.scales[(block * 2 + within / 16) * PANEL + lane]) * static_cast<float>(code - 128);
    }
    float scale = from_half(segment.scales[block * PANEL + lane]);
    if (segment.kind == U4) return scale * static_cast<float>(code - 8);
    if (segment.kind == U8) return scale * static_cast<float>(code - 128);
    return scale * static_cast<float>(code) + from_half(segment.offsets[block * PANEL + lane]);
}

void gather(const Matrix& matrix, const int64_t* tokens, int64_t count, float scale, float* out) {
    for (int64_t i = 0; i < count; ++i) {
        int64_t row = tokens[i];
        const Segment* segment = matrix.segments;
        while (row >= segment->rows) row -= segment++->rows;
        for (int64_t col = 0; col < matrix.cols; ++col) *out++ = weight(*segment, row, col, matrix.cols) * scale;
    }
}

}  // namespace

void fill(LinearKernels& kernels) {
#ifdef PENSTOCK_PAIRS
    if (is_zen_4()) pieces = &OF_ZEN_4;
#endif
    kernels.quantize = quantize;
    kernels.linear = linear;
    kernels.gather = gather;
}

}  // namespace penstock::PENSTOCK_ISA
