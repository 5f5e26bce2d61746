// The draw of a token from a row of logits, as penstock.sample defines it: temperature, top_k, top_p, min_p, typical_p, and
// the largest of score + noise among the tokens that the filters keep.
#pragma once

#include <cstdint>

#include "draw_params.h"  // generated from kernels/sampling_layout.py

namespace penstock {

inline int64_t draw_scratch(int64_t vocab) { return 5 * (vocab + 16); }  // floats

struct DrawKernels {
    int32_t (*draw)(const float* logits, int64_t vocab, const DrawParams& params, float* scratch);
};

}  // namespace penstock
