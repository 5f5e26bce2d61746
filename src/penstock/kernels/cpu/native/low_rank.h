// Low-rank deltas of adapters: out += (x · Aᵀ · scale) · Bᵀ for the rows of a step that have an adapter, each with its own.
//
// Both matrices are panels of 16 rows, as in linear.h, of float16 or float32, or of CODES: [cols][16] int8, and the scales of
// the 16 rows as halves. The sums over inputs and ranks run in one order, so a row's delta depends on its own x and adapter
// alone, not on the batch or the threads.
#pragma once

#include <cstdint>

#include "linear.h"

namespace penstock {

constexpr int32_t MOST_PARTS = 3;  // q, k and v
constexpr int32_t CODES = NUM_KINDS;  // another kind
constexpr int64_t FETCHED_AHEAD = 8192;  // bytes before those that are multiplied: an adapter of one row waits for memory

// Of a panel.
static inline int64_t panel_bytes(int32_t kind, int64_t cols) {
    if (kind == CODES) return (cols + 2) * PANEL;
    return cols * PANEL * (kind == F16 ? 2 : 4);
}

// Of one part of a product, such as k of q, k and v.
struct LowRankPart {
    const void* a;  // [panels of ranks][inputs][16]; null: the adapter leaves the part alone
    const void* b;  // [panels of outputs][rank][16]
    int64_t inputs, rank, outputs;
    int64_t offset;  // of the part in the product
    float scale;
    int32_t kind;  // F16, F32 or CODES
};

struct Adapter {
    const LowRankPart* parts;  // [sites][MOST_PARTS]; a site is the embedding, the head, or a product of a layer
    int64_t row_floats;        // the most ranks that the parts of one site have together, each in whole panels
};

struct LowRankKernels {
    // Ranks of panels `begin` to `end`: shrunk = x · Aᵀ · scale. Row i of x has number rows[i], row i of `shrunk` (whole panels)
    // is its i-th.
    void (*shrink)(const LowRankPart& part, const float* x, const int64_t* rows, int64_t count, float* shrunk, int64_t begin,
                   int64_t end);
    // All ranks of an embedding: shrunk = columns of A · scale. Row i has token tokens[rows[i]].
    void (*gather)(const LowRankPart& part, const int64_t* tokens, const int64_t* rows, int64_t count, float scale,
                   float* shrunk);
    // Outputs of panels `begin` to `end`: out += shrunk · Bᵀ. `out` has rows of `stride`.
    void (*expand)(const LowRankPart& part, const float* shrunk, const int64_t* rows, int64_t count, float* out,
                   int64_t stride, int64_t begin, int64_t end);
};

}  // namespace penstock
