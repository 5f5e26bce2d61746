// Operations on single rows: RMS norm, gated activation, soft-cap. Where `quantized` is given, the result is written
// there as well, for a product to read; `out` may then be null.
#pragma once

#include <cstdint>

#include "linear.h"

namespace penstock {

enum Activation : int32_t { SILU, GELU_TANH };

struct RowKernels {
    // out = x * weight / rms(x), for `count` rows of `width`. `added`, if given, is first added to x, in place.
    void (*norm)(float* x, const float* added, const float* weight, float eps, int64_t count, int64_t width, float* out,
                 Quantized* quantized);
    // out[c] = activation(gate_up[c]) * gate_up[width + c] for from <= c < to, of `count` rows. With `quantized`, `from` is
    // a multiple of BLOCK. Rows of the results have `stride` columns.
    void (*gate)(const float* gate_up, int32_t activation, int64_t count, int64_t width, int64_t from, int64_t to,
                 float* out, Quantized* quantized, int64_t stride);
    // x = cap * tanh(x / cap)
    void (*cap)(float* x, int64_t count, float cap);
    // Index of the largest, the first of equals.
    int64_t (*argmax)(const float* x, int64_t count);
};

}  // namespace penstock
