// The draw of a token from a row of logits, as penstock.sample defines it: temperature, top_k, top_p, min_p, typical_p, and
// the largest of score + noise among what they keep.
#pragma once

#include <cstdint>

namespace penstock {

enum DrawKind : int32_t { LARGEST, SAMPLED };

// How one row is drawn; what is off has a value that changes nothing.
struct Draw {
    int32_t kind;
    int32_t slot, position;  // where the token goes; the noise depends on the position too
    int32_t top_k;           // off: 0
    float temperature;
    float top_p;      // off: inf
    float log_min_p;  // off: -inf
    float typical_p;  // off: inf
    int32_t prompt_length;
    float repetition, presence, frequency;  // penalties, which `Program` applies; off: 1, 0, 0
    int64_t stream;                         // of noise
};

inline int64_t draw_scratch(int64_t vocab) { return 5 * (vocab + 16); }  // floats

struct DrawKernels {
    int32_t (*draw)(const float* logits, int64_t vocab, const Draw& draw, float* scratch);
};

}  // namespace penstock
