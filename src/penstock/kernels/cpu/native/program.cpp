#include "program.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "kernels.h"
#include "penstock.h"

namespace penstock {

namespace {

// Shares of a stage: small enough that threads end together though one of them is slower, large enough that taking
// them costs nothing. In units that pass in about a nanosecond on one core.
constexpr int64_t SHARE_COST = 3000;
constexpr int64_t SHARES_PER_THREAD = 4;
// Where reading the weights decides, a share is at least so much: each begins a stream that the prefetchers must find.
constexpr int64_t STREAM_BYTES = 2 << 20;
// Rows of up to so many tokens attend query by query: of several queries a tile of keys is converted first, which pays
// off with more of them.
constexpr int32_t FEW_QUERIES = 4;
// Of products with many tokens a share takes at least so long, about: its first weights come from memory.
constexpr int64_t PANEL_SHARE_COST = 20'000;
// Tokens of a block of columns that go through product and gate at a time: half of them in a first cache, all in a second.
constexpr int64_t GATED_TOKENS = 256, GATED_FLOATS = GATED_TOKENS * 2 * BLOCK;

int64_t matrix_bytes(const Matrix& matrix) {
    int64_t bits = 0;
    for (int32_t index = 0; index < matrix.num_segments; ++index) {
        const Segment& segment = matrix.segments[index];
        const int32_t kind = segment.kind;
        bits += segment.rows * (kind == F32 ? 32 : kind <= BF16 ? 16 : kind <= U4_OFFSET ? 5 : 9);
    }
    return bits * matrix.cols / 8;
}

int32_t clamp_shares(int64_t cost, int64_t most, int threads) {
    const int64_t wanted = std::min(cost / SHARE_COST, SHARES_PER_THREAD * threads);
    const int64_t even = wanted >= threads ? wanted / threads * threads : wanted;
    return static_cast<int32_t>(std::max<int64_t>(1, std::min(even, most)));
}

// Up to `most` shares of `units`, so many that each thread gets about as many units as the others.
int32_t even_shares(int64_t units, int32_t most, int threads) {
    int32_t best = most;
    const auto units_of_a_thread = [=](int64_t shares) {
        return (units + shares - 1) / shares * ((shares + threads - 1) / threads);
    };
    for (int32_t shares = most - threads; shares >= threads; shares -= threads)
        if (units_of_a_thread(shares) < units_of_a_thread(best)) best = shares;
    return best;
}

// Units that are divided into shares of shrinking size, each a part of what is left: large ones begin few streams, small ones
// at the end let the threads end together though one of them was slower.
class Shrinking {
  public:
    Shrinking(int64_t units, int64_t cost, int threads) : units_(units), threads_(threads) {
        least_ = std::max<int64_t>(1, PANEL_SHARE_COST * units / std::max<int64_t>(1, cost));
    }

    int32_t shares() const {
        int32_t count = 0;
        for (int64_t done = 0; done < units_; ++count) done += size(done);
        return count;
    }
    void part(int share, int64_t& from, int64_t& to) const {
        for (from = 0; share > 0; --share) from += size(from);
        to = from + size(from);
    }

  private:
    int64_t size(int64_t done) const {
        const int64_t left = units_ - done;
        return threads_ == 1 ? left : std::min(left, std::max(least_, left / (2 * threads_)));
    }

    int64_t units_, least_;
    int threads_;
};

// In units that pass in about a nanosecond on one core, if the weights are at hand.
int64_t product_cost(const Matrix& matrix, int64_t rows) { return matrix.rows * matrix.cols * rows / 100; }

// Panels of a product with many tokens, in pairs.
Shrinking panel_pairs(const Matrix& matrix, int64_t rows, int threads) {
    return {(num_panels(matrix) + 1) / 2, product_cost(matrix, rows), threads};
}

// Columns of such a product that a gate reads, in blocks.
Shrinking gated_blocks(const Matrix& matrix, int64_t rows, int threads) {
    return {matrix.rows / 2 / BLOCK, product_cost(matrix, rows), threads};
}

// Whether the rows of a product can go through the gate after it in pieces: whole blocks, of whole pairs of panels.
bool gates(const Op& product, const Op& gate) {
    if (product.kind != LINEAR || gate.kind != GATE || gate.input != product.output || product.option != 0) return false;
    const Matrix& matrix = *static_cast<const Matrix*>(product.weight);
    bool whole = gate.width % BLOCK == 0 && matrix.rows == 2 * gate.width;
    for (int32_t index = 0; index < matrix.num_segments; ++index) whole &= matrix.segments[index].rows % BLOCK == 0;
    return whole;
}

// Memory that is not there until it is touched, and then in large pages where the system has them and all of it is used.
float* reserve(int64_t floats, bool large_pages) {
    const size_t size = static_cast<size_t>(floats) * sizeof(float) + 4096;
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
#ifdef MADV_HUGEPAGE
    if (large_pages) madvise(memory, size, MADV_HUGEPAGE);
#endif
    return static_cast<float*>(memory);
}

void give_back(float* memory, int64_t floats) { munmap(memory, static_cast<size_t>(floats) * sizeof(float) + 4096); }

// The `share`th of `shares` equal parts of `count`, in units.
inline void part(int64_t count, int64_t unit, int share, int shares, int64_t& from, int64_t& to) {
    const int64_t units = (count + unit - 1) / unit;
    from = std::min(units * share / shares * unit, count);
    to = std::min(units * (share + 1) / shares * unit, count);
}

template <class Item>
inline Item* at(Item* items, int64_t index) {
    return items == nullptr ? nullptr : items + index;
}

}  // namespace

Workspace::Workspace(const Layout& layout, int threads)
    : values_floats(layout.row_floats * layout.max_tokens),
      logits_floats(layout.vocab * layout.max_wanted),
      scratch_floats(std::max({attention_scratch(layout.heads), draw_scratch(layout.vocab), GATED_FLOATS})),
      values(reserve(values_floats, true)),
      logits(reserve(logits_floats, false)) {
    for (int thread = 0; thread < threads; ++thread) scratch.push_back(reserve(scratch_floats, false));
}

Workspace::~Workspace() {
    give_back(values, values_floats);
    give_back(logits, logits_floats);
    for (float* one : scratch) give_back(one, scratch_floats);
}

bool Workspace::holds(const Layout& layout) const {
    return layout.row_floats * layout.max_tokens <= values_floats && layout.vocab * layout.max_wanted <= logits_floats &&
           std::max(attention_scratch(layout.heads), draw_scratch(layout.vocab)) <= scratch_floats;
}

Program::Program(Pool& pool, const Layout& layout, const Op* ops, int32_t num_ops, const Program* beside)
    : pool_(pool), layout_(layout), ops_(ops, ops + num_ops) {
    offsets_.assign(layout.offsets, layout.offsets + layout.num_buffers);
    tables_.assign(layout.tables, layout.tables + layout.num_groups);
    const bool shares = beside != nullptr && beside->workspace_->holds(layout);
    workspace_ = shares ? beside->workspace_ : std::make_shared<Workspace>(layout, pool.threads());
    tokens_.resize(static_cast<size_t>(layout.max_tokens));
    positions_.resize(static_cast<size_t>(layout.max_tokens));
    wanted_.resize(static_cast<size_t>(layout.max_wanted));
    token_tables_.assign(static_cast<size_t>(layout.num_groups),
                         std::vector<const int32_t*>(static_cast<size_t>(layout.max_tokens)));
    tasks_.resize(static_cast<size_t>(layout.num_groups) * 2);
    shares_.resize(ops_.size());
    for (int32_t number = 0; number < num_ops; ++number)
        gated_.push_back(number + 1 < num_ops && gates(ops[number], ops[number + 1]));
}

float* Program::buffer(int32_t number) const {
    if (number == LOGITS) return workspace_->logits;
    return number < 0 ? nullptr : workspace_->values + offsets_[static_cast<size_t>(number)] * num_tokens_;
}

int Program::run(const Step& step) {
    step_ = step;
    if (const int wrong = expand(step)) return wrong;
    compute(step);
    if (step.kept != nullptr) accept(step);
    return 0;
}

void Program::compute(const Step& step) {
    plan_attention();
    plan_adapters();
    const int32_t stages = step.to - step.from;
    for (int32_t stage = 0; stage < stages; ++stage) shares_[static_cast<size_t>(stage)] = shares(step, step.from + stage);
    if (!profiling) {
        pool_.run(stages, shares_.data(), body, this);
        return;
    }
    for (; step_.from < step.to; ++step_.from) {
        const Op& op = ops_[static_cast<size_t>(step_.from)];
        shares_[0] = shares(step, step_.from);
        const auto started = std::chrono::steady_clock::now();
        pool_.run(1, shares_.data(), body, this);
        spent_ns[op.kind] += std::chrono::nanoseconds(std::chrono::steady_clock::now() - started).count();
    }
}

void Program::accept(const Step& step) {
    const int32_t* drawn = step.drawn;
    for (int32_t index = 0; index < step.num_rows; ++index) {
        const Row& row = step.rows[index];
        int32_t* slot = layout_.slot_tokens + row.slot * layout_.token_stride + row.start + row.count - row.draws + 1;
        int32_t kept = 0;
        while (kept + 1 < row.draws && drawn[kept] == slot[kept]) ++kept;
        if (row.draws > 0) slot[kept] = drawn[kept], ++kept;
        step.kept[index] = kept;
        drawn += row.draws;
    }
}

void Program::body(void* context, int stage, int share, int thread) {
    Program& program = *static_cast<Program*>(context);
    const int32_t number = program.step_.from + stage;
    const Op& op = program.ops_[static_cast<size_t>(number)];
    if (program.goes_through_gate(number)) {
        program.multiply_and_gate(op, program.ops_[static_cast<size_t>(number) + 1], share, thread);
    } else {
        program.execute(op, share, program.shares_[static_cast<size_t>(stage)], thread);
    }
}

int Program::expand(const Step& step) {
    int64_t num_tokens = 0, num_wanted = 0;
    for (int32_t index = 0; index < step.num_rows; ++index) {
        num_tokens += step.rows[index].count;
        num_wanted += step.rows[index].draws;
    }
    if (step.wanted != nullptr) num_wanted = step.num_wanted;
    if (num_tokens > layout_.max_tokens) return 1;
    if (num_wanted > layout_.max_wanted) return 2;
    num_tokens_ = num_tokens;
    num_wanted_ = num_wanted;
    size_t token = 0, want = 0;
    for (int32_t index = 0; index < step.num_rows; ++index) {
        const Row& row = step.rows[index];
        const int32_t* known = layout_.slot_tokens + row.slot * layout_.token_stride;
        for (int32_t position = row.start; position < row.start + row.count; ++position, ++token) {
            tokens_[token] = known[position];
            positions_[token] = position;
            for (size_t group = 0; group < tables_.size(); ++group)
                token_tables_[group][token] = tables_[group] + row.slot * layout_.table_stride;
        }
        if (step.wanted == nullptr)
            for (int32_t before = row.draws; before > 0; --before) wanted_[want++] = static_cast<int32_t>(token) - before;
    }
    if (step.wanted != nullptr) std::copy(step.wanted, step.wanted + num_wanted, wanted_.begin());
    return 0;
}

void Program::plan_attention() {
    std::vector<bool> planned(tasks_.size());
    for (int32_t number = step_.from; number < step_.to; ++number) {
        const Op& op = ops_[static_cast<size_t>(number)];
        const size_t which = static_cast<size_t>(op.group * 2 + op.rows);
        if (op.kind != ATTENTION || planned[which]) continue;
        planned[which] = true;
        spans_.clear();
        int32_t token = 0;
        if (op.rows == TOKENS) {
            for (int32_t index = 0; index < step_.num_rows; ++index) {
                const Row& row = step_.rows[index];
                const int32_t size = row.count <= FEW_QUERIES ? 1 : row.count;
                for (int32_t first = 0; first < row.count; first += size)
                    spans_.push_back({token + first, token + first, size, row.start + first});
                token += row.count;
            }
        } else {
            for (int32_t index = 0; index < num_wanted_; ++index) {
                token = wanted_[static_cast<size_t>(index)];
                spans_.push_back({token, index, 1, positions_[static_cast<size_t>(token)]});
            }
        }
        tasks_[which].plan(layout_.heads, op.window, spans_, pool_.threads());
    }
}

void Program::plan_adapters() {
    runs_.clear();
    token_adapters_.clear();
    int64_t token = 0;
    for (int32_t index = 0; step_.adapters != nullptr && index < step_.num_rows; ++index) {
        const int32_t count = step_.rows[index].count;
        const Adapter* adapter = step_.adapters[index];
        token_adapters_.insert(token_adapters_.end(), static_cast<size_t>(count), adapter);
        if (adapter != nullptr) runs_.push_back({adapter, token, count});
        token += count;
    }
    low_rank_[TOKENS].plan(runs_, pool_.threads());
    runs_.clear();
    for (int64_t index = 0; step_.adapters != nullptr && index < num_wanted_; ++index) {
        const Adapter* adapter = token_adapters_[static_cast<size_t>(wanted_[static_cast<size_t>(index)])];
        if (adapter != nullptr) runs_.push_back({adapter, index, 1});
    }
    low_rank_[WANTED].plan(runs_, pool_.threads());
}

bool Program::goes_through_gate(int32_t number) const {
    return gated_[static_cast<size_t>(number)] && number + 1 < step_.to &&
           count(ops_[static_cast<size_t>(number)]) >= MANY_TOKENS;
}

int32_t Program::shares(const Step& step, int32_t number) {
    const Op& op = ops_[static_cast<size_t>(number)];
    const int64_t rows = count(op);
    if (rows == 0) return 0;
    const int threads = pool_.threads();
    switch (op.kind) {
        case LINEAR: {
            const Matrix& matrix = *static_cast<const Matrix*>(op.weight);
            if (goes_through_gate(number)) return gated_blocks(matrix, rows, threads).shares();
            if (rows >= MANY_TOKENS) return panel_pairs(matrix, rows, threads).shares();
            const int64_t bytes = matrix_bytes(matrix), cost = product_cost(matrix, rows), units = num_panels(matrix);
            int64_t most = units;
            if (cost < bytes / 12) most = std::min(most, std::max<int64_t>(threads, bytes / STREAM_BYTES));
            return even_shares(units, clamp_shares(std::max(bytes / 12, cost), most, threads), threads);
        }
        case ATTENTION: return tasks(op).shares();
        case GATE:
            if (number > step.from && goes_through_gate(number - 1)) return 0;
            return clamp_shares(rows * op.width / 2, rows > 1 ? rows : num_blocks(op.width), threads);
        case LOW_RANK: return low_rank(op).first_shares(op.window, op.option);
        case LOW_RANK_END: return low_rank(op).second_shares(op.window, op.option);
        case LOW_RANK_EMBED: return low_rank(op).embed_shares();
        case DRAW: return step_.draws == nullptr && step_.logprobs == nullptr ? 0 : static_cast<int32_t>(rows);
        default: return clamp_shares(rows * op.width, rows, threads);
    }
}

void Program::execute(const Op& op, int share, int shares, int thread) {
    const Kernels& kernel = kernels();
    const int64_t rows = count(op), width = op.width, blocks = num_blocks(width);
    float* input = buffer(op.input);
    float* output = buffer(op.output);
    Quantized* packed = quantized(op.quantized);
    int64_t from, to;
    part(rows, 1, share, shares, from, to);
    switch (op.kind) {
        case EMBED:
            kernel.linear.gather(*static_cast<const Matrix*>(op.weight), tokens_.data() + from, to - from, op.scale,
                                 output + from * width);
            break;
        case NORM:
            kernel.rows.norm(input + from * width, op.added < 0 ? nullptr : buffer(op.added) + from * width,
                             static_cast<const float*>(op.weight), op.scale, to - from, width, at(output, from * width),
                             at(packed, from * blocks));
            break;
        case QUANTIZE: kernel.linear.quantize(input + from * width, to - from, width, packed + from * blocks, blocks); break;
        case LINEAR: {
            const Matrix& matrix = *static_cast<const Matrix*>(op.weight);
            if (rows < MANY_TOKENS) {
                part(num_panels(matrix), 1, share, shares, from, to);
            } else {
                panel_pairs(matrix, rows, pool_.threads()).part(share, from, to);
                from *= 2, to *= 2;
            }
            kernel.linear.linear(matrix, input, packed, rows, op.bias, output, width, op.option != 0, from, to);
            break;
        }
        case ROTATE_STORE:
            kernel.attention.rotate_store(layout_.heads, op.rotation, op.pages, input + from * width, width, to - from,
                                          positions_.data() + from,
                                          token_tables_[static_cast<size_t>(op.group)].data() + from);
            break;
        case ATTENTION: {
            const Scores rule{op.scale, op.softcap, op.window};
            const int64_t qkv = (layout_.heads.heads + 2 * layout_.heads.kv_heads) * layout_.heads.head_dim;
            tasks(op).run(layout_.heads,
                          {rule, op.pages, input, qkv, token_tables_[static_cast<size_t>(op.group)].data(), output, packed},
                          share, workspace_->scratch[static_cast<size_t>(thread)]);
            break;
        }
        case GATE:
            if (rows > 1) {
                kernel.rows.gate(input + from * 2 * width, op.option, to - from, width, 0, width, at(output, from * width),
                                 at(packed, from * blocks), width);
            } else {
                part(width, BLOCK, share, shares, from, to);
                kernel.rows.gate(input, op.option, 1, width, from, to, output, packed, width);
            }
            break;
        case PICK:
            for (; from < to; ++from)
                std::memcpy(output + from * width, input + wanted_[static_cast<size_t>(from)] * width,
                            static_cast<size_t>(width) * sizeof(float));
            break;
        case INPUT:
            std::memcpy(output + from * width, step_.inputs + from * width,
                        static_cast<size_t>((to - from) * width) * sizeof(float));
            break;
        case COPY:
            for (int64_t index = from * width; index < to * width; ++index)
                output[index] = op.option != 0 ? output[index] + input[index] : input[index];
            break;
        case SCATTER:
            for (; from < to; ++from) {
                const int32_t* places = static_cast<const int32_t*>(op.weight);
                std::fill_n(output + from * width, width, -std::numeric_limits<float>::infinity());
                for (int64_t index = 0; index < op.window; ++index)
                    output[from * width + places[index]] = input[from * op.window + index];
            }
            break;
        case LOW_RANK: low_rank(op).first(op.window, op.option, input, output, width, share); break;
        case LOW_RANK_END: low_rank(op).second(op.window, op.option, output, width, share); break;
        case LOW_RANK_EMBED: low_rank(op).embed(op.window, tokens_.data(), op.scale, output, width, share); break;
        case CAP: kernel.rows.cap(output + from * width, (to - from) * width, op.scale); break;
        case DRAW:
            for (; from < to; ++from) draw(from, workspace_->scratch[static_cast<size_t>(thread)]);
            break;
    }
}

// Block of columns by block of columns, so that the product's results stay in the cache.
void Program::multiply_and_gate(const Op& product, const Op& gate, int share, int thread) {
    const Kernels& kernel = kernels();
    const Matrix& matrix = *static_cast<const Matrix*>(product.weight);
    const int64_t rows = count(product), width = gate.width, blocks = num_blocks(width), inputs = num_blocks(matrix.cols);
    const float* x = buffer(product.input);
    const Quantized* packed = quantized(product.quantized);
    float* results = workspace_->scratch[static_cast<size_t>(thread)];  // [tokens][2][BLOCK]
    int64_t block, end;
    gated_blocks(matrix, rows, pool_.threads()).part(share, block, end);
    for (; block < end; ++block) {
        for (int64_t token = 0; token < rows; token += GATED_TOKENS) {
            const int64_t some = std::min(GATED_TOKENS, rows - token);
            for (int64_t half = 0; half < 2; ++half) {
                const int64_t row = half * width + block * BLOCK;
                kernel.linear.linear(matrix, at(x, token * matrix.cols), at(packed, token * inputs), some, product.bias,
                                     results + half * BLOCK - row, 2 * BLOCK, false, row / PANEL, (row + BLOCK) / PANEL);
            }
            kernel.rows.gate(results, gate.option, some, BLOCK, 0, BLOCK,
                             at(buffer(gate.output), token * width + block * BLOCK),
                             at(quantized(gate.quantized), token * blocks + block), width);
        }
    }
}

void Program::draw(int64_t row, float* scratch) {
    float* logits = workspace_->logits + row * layout_.vocab;
    if (step_.draws == nullptr) {
        kernels().draw.measure(logits, layout_.vocab, *step_.logprobs, row);
        return;
    }
    const DrawParams& params = step_.draws[row];
    const int32_t token = kernels().draw.draw(logits, layout_.vocab, params, *step_.tables, step_.logprobs, row, scratch);
    step_.drawn[row] = token;
    if (step_.kept == nullptr) layout_.slot_tokens[params.slot * layout_.token_stride + params.position] = token;
}

}  // namespace penstock

extern "C" {

void* penstock_pool_new(int threads) { return new penstock::Pool(threads); }

void penstock_pool_free(void* pool) { delete static_cast<penstock::Pool*>(pool); }

void* penstock_program_new(void* pool, const void* layout, const void* ops, int32_t num_ops, const void* beside) {
    return new penstock::Program(*static_cast<penstock::Pool*>(pool), *static_cast<const penstock::Layout*>(layout),
                                 static_cast<const penstock::Op*>(ops), num_ops,
                                 static_cast<const penstock::Program*>(beside));
}

void penstock_program_free(void* program) { delete static_cast<penstock::Program*>(program); }

int penstock_program_run(void* program, const void* step) {
    return static_cast<penstock::Program*>(program)->run(*static_cast<const penstock::Step*>(step));
}

float* penstock_program_buffer(void* program, int32_t number) {
    return static_cast<penstock::Program*>(program)->buffer(number);
}

const int64_t* penstock_program_profile(void* program, int on) {
    penstock::Program& profiled = *static_cast<penstock::Program*>(program);
    profiled.profiling = on != 0;
    return profiled.spent_ns;
}
}
