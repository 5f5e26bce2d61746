// Products with packed matrices: the layout of weights, and the interface of the kernels.
//
// A matrix is a stack of segments (q, k and v of a fused matrix may each have their own format). A segment consists of
// panels of 16 output rows; a panel holds its inputs in blocks of 32, padded with zeros to whole panels and blocks.
// The arrays of each kind, with P = ceil(rows / 16) panels and B = ceil(cols / 32) blocks:
//
//   kind      codes                             scales            offsets        weight
//   F32       float  [P][cols][16]                                               as stored
//   F16       half   [P][cols][16]                                               as stored
//   BF16      bfloat [P][cols][16]                                               as stored
//   U4        uint8  [P][B][4][16][4]           half [P][B][16]                  scale * (code - 8)
//   U4_OFFSET uint8  [P][B][4][16][4]           half [P][B][16]   half [P][B][16] scale * code + offset
//   U8        uint8  [P][B][8][16][4]           half [P][B][16]                  scale * (code - 128)
//   U8_OFFSET uint8  [P][B][8][16][4]           half [P][B][16]   half [P][B][16] scale * code + offset
//   U8_HALVES uint8  [P][B][8][16][4]           half [P][B][2][16]               scale of each 16 inputs * (code - 128)
//
// [q][16][4]: 64 bytes with four consecutive inputs, 4 q to 4 q + 3, of each row: what one dot product instruction takes.
// A byte of a 4-bit kind holds input 4 q + i in its low half and input 16 + 4 q + i in its high half.
//
// All results depend on the row of x alone, never on the other rows or on the panels asked for: block products are integers,
// and their sum over the blocks runs in one order.
#pragma once

#include <cstdint>

namespace penstock {

constexpr int64_t PANEL = 16;
constexpr int64_t BLOCK = 32;

enum Kind : int32_t { F32, F16, BF16, U4, U4_OFFSET, U8, U8_OFFSET, U8_HALVES, NUM_KINDS };

struct Segment {
    int64_t rows;
    int32_t kind;
    int32_t unused;
    const void* codes;  // 64-byte aligned, like the other two
    const uint16_t* scales;
    const uint16_t* offsets;
};

struct Matrix {
    int64_t rows, cols;
    const Segment* segments;
    int32_t num_segments;
    int32_t reads_float;      // some segment has a float kind: `x` is read
    int32_t reads_quantized;  // some segment has a packed kind: `quantized` is read
    int32_t unused;
};

// 32 activations: x = scale * code. A row of x is ceil(cols / 32) of them, rows lie one after the other.
//
// The quad (four consecutive inputs) with the largest size has codes of 12 bits, low + 16 * high, and the largest size of the
// other quads sets the scale: activations have outliers, and one in a block would cost the others their precision.
//
// Scales are level_factor(level) * 2^n: products with many tokens read `weight's scale * level_factor(level)` from a table and add n to
// its exponent, where a multiplication would be one of twelve operations that share the multipliers. Scales of blocks of
// zeros count nothing, but are such numbers too.
struct Quantized {
    float scale;
    float scaled_sum;     // scale * sum of the codes
    int32_t minus_sum;    // of the codes
    int32_t minus_first;  // of the first 16 codes
    int8_t codes[32];     // of that quad: low
    int8_t high[4];
    int16_t quad;  // its number
    int16_t level;
};
static_assert(sizeof(Quantized) == 56, "rows of activations are laid out by this size");
constexpr int HIGH_BITS = 4;          // a high code counts 1 << HIGH_BITS
constexpr float MOST = 127.0f;        // the largest code of 8 bits
constexpr float MOST_WIDE = 2032.0f;  // and of 12: MOST << HIGH_BITS
constexpr int LEVEL_BITS = 4, NUM_LEVELS = 1 << LEVEL_BITS;

// The largest size that the codes of 8 bits reach has LEVEL_BITS bits behind its first, so a scale has this factor.
constexpr float level_factor(int level) {
    return (1.0f + static_cast<float>(level) / static_cast<float>(NUM_LEVELS)) * (1.0f / MOST);
}

// Shares of the panels are whole pairs for products with so many tokens; with fewer a share may end with half a pair.
constexpr int64_t MANY_TOKENS = 32;

static inline int64_t num_blocks(int64_t cols) { return (cols + BLOCK - 1) / BLOCK; }
static inline int64_t num_panels(int64_t rows) { return (rows + PANEL - 1) / PANEL; }
static inline int64_t num_panels(const Matrix& matrix) {
    int64_t panels = 0;
    for (int32_t index = 0; index < matrix.num_segments; ++index) panels += num_panels(matrix.segments[index].rows);
    return panels;
}

struct LinearKernels {
    // x [tokens][cols] -> out, num_blocks(cols) of each token, `stride` apart
    void (*quantize)(const float* x, int64_t tokens, int64_t cols, Quantized* out, int64_t stride);
    // out[t * out_stride + r] = bias[r] + sum over c of x[t][c] * matrix[r][c], or added to out where `accumulate`;
    // for the rows r of the panels `begin` to `end` alone. `bias` may be null.
    void (*linear)(const Matrix& matrix, const float* x, const Quantized* quantized, int64_t tokens, const float* bias,
                   float* out, int64_t out_stride, bool accumulate, int64_t begin, int64_t end);
    // out[i][c] = matrix[tokens[i]][c] * scale, for `count` tokens
    void (*gather)(const Matrix& matrix, const int64_t* tokens, int64_t count, float scale, float* out);
};

}  // namespace penstock
