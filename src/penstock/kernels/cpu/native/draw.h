// The draw of a token from a row of logits, as penstock.sample defines it: biases, penalties and masks; temperature, top_k,
// top_p, min_p, typical_p; and the largest of score + noise among the tokens that the filters keep. Log-probabilities are
// those of the logits as they were.
#pragma once

#include <cstdint>

#include "draw_params.h"  // generated from kernels/sampling_layout.py

namespace penstock {

inline int64_t draw_scratch(int64_t vocab) { return 6 * (vocab + 16); }  // floats

// What lies in the slots. A row of logits is changed by its slot's part: see DrawParams.
struct SlotTables {
    const int32_t* tokens;  // [slots][token_stride]: the sequences
    int64_t token_stride;
    const int32_t* bias_tokens;  // [slots][bias_stride]
    const float* biases;         // [slots][bias_stride]
    int64_t bias_stride;
    const uint32_t* allowed;  // [mask rows][mask_words]: a bit for each token that may be drawn, the lowest first
    int64_t mask_words;
};

// Log-probabilities of one token of each row, and of its most likely ones.
struct LogprobTable {
    const int32_t* counts;  // [rows]: how many of the most likely, at most `width`; -1: the row is not measured
    int32_t* tokens;        // [rows]: whose; written where a token is drawn
    float* logprobs;        // [rows]
    int32_t* ranks;         // [rows], 1: the most likely
    int32_t* top_tokens;    // [rows][width], best first, of equal logits the smaller token first
    float* top_logprobs;    // [rows][width]
    int64_t width;
};

struct DrawKernels {
    // `logits` are changed; where `logprobs` measures the row, they stay as they are.
    int32_t (*draw)(float* logits, int64_t vocab, const DrawParams& params, const SlotTables& tables,
                    const LogprobTable* logprobs, int64_t row, float* scratch);
    // The scores that `draw` adds noise to, -inf where it draws no token; the token itself is 0 if it is greedy.
    void (*filter)(const float* logits, int64_t vocab, const DrawParams& params, const SlotTables& tables, float* scores,
                   float* scratch);
    // Of the token that is in the table.
    void (*measure)(const float* logits, int64_t vocab, const LogprobTable& logprobs, int64_t row);
};

}  // namespace penstock
