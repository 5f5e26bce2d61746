// A model's wiring as a flat list of operations, and what runs it: one call per step.
//
// Python records the list once (program.py, whose structs mirror these). A step names its rows by slot; tokens and block
// tables are read from the slots themselves. Values between operations lie in an arena: buffer b of a step of n tokens
// begins at float n * offsets[b], so that the buffers of a small step lie close together.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention.h"
#include "draw.h"
#include "low_rank_tasks.h"
#include "pool.h"
#include "tasks.h"

namespace penstock {

enum OpKind : int32_t {
    EMBED, NORM, QUANTIZE, LINEAR, ROTATE_STORE, ATTENTION, GATE, PICK, CAP, DRAW, INPUT, COPY, SCATTER, LOW_RANK,
    LOW_RANK_END, LOW_RANK_EMBED, NUM_OPS
};

// Which rows an operation has: all tokens of the step, or those that are wanted (whose logits are asked for).
enum Rows : int32_t { TOKENS, WANTED };

// Fields that a kind has no use for are 0, buffers -1.
struct Op {
    int32_t kind;
    int32_t rows;
    int32_t input;      // buffer; -1 of a LINEAR that reads none but the quantized one
    int32_t added;      // buffer: NORM adds it to its input first
    int32_t output;     // buffer; LOGITS: that of the logits; -1 of a NORM, GATE or ATTENTION that is only read quantized
    int32_t quantized;  // buffer: of QUANTIZE, NORM, GATE and ATTENTION the result, of LINEAR the input
    int32_t option;     // LINEAR, COPY: accumulate; GATE: Activation; LOW_RANK, LOW_RANK_END: parts of the product
    int32_t group;      // of the cache
    int64_t width;      // of the output; of ROTATE_STORE the input's
    int64_t window;     // of ATTENTION; of SCATTER the input's width; of LOW_RANK, its END and EMBED the site
    float scale;        // EMBED, LOW_RANK_EMBED, ATTENTION; NORM: eps; CAP: the cap
    float softcap;      // ATTENTION
    const void* weight;  // Matrix of EMBED and LINEAR, float of NORM, int32_t of SCATTER: where each input goes
    const float* bias;
    Pages pages;
    Rotation rotation;
};

constexpr int32_t LOGITS = -2;

struct Layout {
    Heads heads;
    int32_t* slot_tokens;  // [slots][token_stride]
    int64_t token_stride;
    const int32_t* const* tables;  // [groups], each [slots][table_stride]
    int64_t table_stride;
    int32_t num_groups;
    int32_t num_buffers;
    const int64_t* offsets;  // [buffers], in floats per token
    int64_t row_floats;      // of all buffers together
    int64_t max_tokens, max_wanted, vocab;
};

struct Row {
    int32_t slot, start, count;
    int32_t draws;  // of its last tokens
};

struct Step {
    const Row* rows;
    const int32_t* wanted;  // packed tokens; null: the last ones of each row, as many as it draws
    const DrawParams* draws;  // [wanted], or null
    const SlotTables* tables;  // of the draws
    const LogprobTable* logprobs;  // [wanted], or null: of the drawn tokens, without `draws` of those in the table
    int32_t* drawn;         // [wanted]
    int32_t* kept;  // [rows]: how many draws of each row count, those up to the first that differs from the draft in its
                    // slot; null: no row has drafts
    const float* inputs;  // [tokens][width of INPUT], or null
    const Adapter* const* adapters;  // [rows], null of those without; null: no row has one
    int32_t num_rows, num_wanted;
    int32_t from, to;  // operations
};

// The memory of values, logits and scratch. It is there once it is touched.
struct Workspace {
    Workspace(const Layout& layout, int threads);
    ~Workspace();
    bool holds(const Layout& layout) const;

    int64_t values_floats, logits_floats, scratch_floats;
    float* values;
    float* logits;
    std::vector<float*> scratch;  // [threads]
};

class Program {
  public:
    // `beside`: a program of the same pool, or null. Its memory is this one's too, if it is large enough: a run of either
    // overwrites the results of the other.
    Program(Pool& pool, const Layout& layout, const Op* ops, int32_t num_ops, const Program* beside);

    // 0, or what is wrong with the step: 1 too many tokens, 2 too many wanted.
    int run(const Step& step);

    float* buffer(int32_t number) const;

    bool profiling = false;
    int64_t spent_ns[NUM_OPS] = {};

  private:
    static void body(void* context, int stage, int share, int thread);
    void execute(const Op& op, int share, int shares, int thread);
    // Whether the results of the product `number` go through the gate after it share by share: where there are many rows.
    // The buffer between the two is not written then; those that the product reads must not be what the gate writes.
    bool goes_through_gate(int32_t number) const;
    void multiply_and_gate(const Op& product, const Op& gate, int share, int thread);
    void draw(int64_t row, float* scratch);
    int expand(const Step& step);
    void compute(const Step& step);
    void accept(const Step& step);  // of drafts; writes the last token that counts to its slot
    void plan_attention();
    void plan_adapters();
    LowRankTasks& low_rank(const Op& op) { return low_rank_[op.rows]; }
    AttentionTasks& tasks(const Op& op) { return tasks_[static_cast<size_t>(op.group * 2 + op.rows)]; }
    int32_t shares(const Step& step, int32_t number);  // of an operation, in that whole step
    int64_t count(const Op& op) const { return op.rows == TOKENS ? num_tokens_ : num_wanted_; }
    Quantized* quantized(int32_t number) const { return reinterpret_cast<Quantized*>(buffer(number)); }

    Pool& pool_;
    Layout layout_;
    std::vector<Op> ops_;
    std::vector<bool> gated_;  // [ops]: a product whose only reader is the gate after it
    std::vector<int64_t> offsets_;
    std::vector<const int32_t*> tables_;
    std::shared_ptr<Workspace> workspace_;

    // The step under way.
    Step step_{};
    int64_t num_tokens_ = 0, num_wanted_ = 0;
    std::vector<int64_t> tokens_;
    std::vector<int32_t> positions_, wanted_;
    std::vector<std::vector<const int32_t*>> token_tables_;  // [groups][tokens]
    std::vector<AttentionTasks> tasks_;                      // [groups * 2]: of all tokens, of the wanted
    LowRankTasks low_rank_[2];                               // of all tokens, of the wanted
    std::vector<AdaptedRun> runs_;
    std::vector<const Adapter*> token_adapters_;  // [tokens]
    std::vector<Span> spans_;
    std::vector<int32_t> shares_;  // [stages]
};

}  // namespace penstock
