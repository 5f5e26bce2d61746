// Runs every kernel over pseudo-random inputs and prints "<instruction set> <kernel> <digest of the results>", for each
// instruction set of this build that the machine has. Instruction sets and machines whose kernels agree to the last bit print
// the same digests. test_kernel_digest.py builds it for this machine and for ARM.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.h"
#include "penstock.h"

namespace {

using namespace penstock;

const char* const INSTRUCTION_SETS[] = {"portable", "avx2", "avx512", "avx512vnni", "neon", "dotprod"};

const Kernels& kernels_in_use() { return *static_cast<const Kernels*>(penstock_kernels()); }

// The same numbers on all machines: whole numbers, scaled by powers of two.
class Source {
  public:
    explicit Source(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15) {}

    uint32_t bits() {  // splitmix64
        uint64_t x = state_ += 0x9E3779B97F4A7C15;
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
        x = (x ^ x >> 27) * 0x94D049BB133111EB;
        return static_cast<uint32_t>((x ^ x >> 31) >> 32);
    }
    int32_t below(int32_t end) { return static_cast<int32_t>(bits() % static_cast<uint32_t>(end)); }
    float uniform() { return static_cast<float>(static_cast<int32_t>(bits()) >> 8) * 0x1p-23f; }  // -1 to 1
    float normal() { return uniform() + uniform() + uniform(); }                                  // of variance 1

    // Of all sizes from 2^-14 to 4, now and then zero or subnormal.
    uint16_t half() {
        const uint32_t x = bits(), exponent = x >> 16 & 63 ? 1 + (x >> 22) % 16 : 0;
        return static_cast<uint16_t>((x & 0x8000) | exponent << 10 | (x & 0x3FF));
    }
    uint16_t bfloat() {  // 2^-8 to 2
        const uint32_t x = bits();
        return static_cast<uint16_t>((x & 0x8000) | (119 + (x >> 16) % 9) << 7 | (x & 0x7F));
    }

    std::vector<float> floats(int64_t count, float scale = 1.0f) {
        std::vector<float> values(static_cast<size_t>(count));
        for (float& value : values) value = normal() * scale;
        return values;
    }

  private:
    uint64_t state_;
};

class Digest {  // FNV-1a
  public:
    void add(const void* data, size_t size) {
        for (size_t at = 0; at < size; ++at) state_ = (state_ ^ static_cast<const uint8_t*>(data)[at]) * 0x100000001B3;
    }
    template <class T>
    void add(const std::vector<T>& values) {
        add(values.data(), values.size() * sizeof(T));
    }
    void print(const char* kernel) const {
        std::printf("%s %s %016llx\n", penstock_isa(), kernel, static_cast<unsigned long long>(state_));
    }

  private:
    uint64_t state_ = 0xCBF29CE484222325;
};

// A segment of random codes. `extreme`: the largest ones.
struct Weights {
    std::vector<uint8_t> codes;
    std::vector<uint16_t> scales, offsets;
    Segment segment{};

    Weights(Source& source, Kind kind, int64_t rows, int64_t cols, bool extreme = false) {
        const int64_t panels = num_panels(rows), blocks = num_blocks(cols), floats = panels * cols * PANEL;
        const bool nibbles = kind == U4 || kind == U4_OFFSET;
        const size_t bytes = static_cast<size_t>(kind == F32     ? floats * 4
                                                 : kind <= BF16 ? floats * 2
                                                                : panels * blocks * (nibbles ? 256 : 512));
        codes.resize(bytes + 64);
        for (size_t at = 0; at < bytes; at += 4) {
            uint8_t* to = codes.data() + at;
            const float value = source.normal();
            uint32_t word = extreme ? 0xFFFFFFFF : source.bits();
            if (kind == F32) std::memcpy(&word, &value, 4);
            if (kind == F16) word = source.half() | static_cast<uint32_t>(source.half()) << 16;
            if (kind == BF16) word = source.bfloat() | static_cast<uint32_t>(source.bfloat()) << 16;
            std::memcpy(to, &word, 4);
        }
        for (int64_t at = 0; at < panels * blocks * 32; ++at) scales.push_back(source.half()), offsets.push_back(source.half());
        segment = {rows, kind, 0, codes.data(), scales.data(), offsets.data()};
    }
};

Matrix matrix(const std::vector<Segment>& segments, int64_t cols) {
    Matrix made{0, cols, segments.data(), static_cast<int32_t>(segments.size()), 1, 1, 0};
    for (const Segment& segment : segments) made.rows += segment.rows;
    return made;
}

std::vector<Quantized> quantize(const std::vector<float>& x, int64_t tokens, int64_t cols) {
    std::vector<Quantized> made(static_cast<size_t>(tokens * num_blocks(cols)));
    std::memset(static_cast<void*>(made.data()), 0, made.size() * sizeof(Quantized));
    kernels_in_use().linear.quantize(x.data(), tokens, cols, made.data(), num_blocks(cols));
    return made;
}

void product(const Matrix& weights, const std::vector<float>& x, int64_t tokens, const std::vector<float>* bias,
             std::vector<float>& out, bool accumulate, int64_t parts) {
    const std::vector<Quantized> quantized = quantize(x, tokens, weights.cols);
    const int64_t panels = num_panels(weights);
    for (int64_t part = 0; part < parts; ++part)
        kernels_in_use().linear.linear(weights, x.data(), quantized.data(), tokens, bias ? bias->data() : nullptr,
                                       out.data(), weights.rows, accumulate, panels * part / parts,
                                       panels * (part + 1) / parts);
}

void linear(Kind kind, const char* name) {
    const int64_t shapes[][2] = {{16, 32}, {48, 64}, {5, 96}, {33, 577}, {100, 33}, {17, 1}, {40, 800}};
    Source source(100 + static_cast<uint64_t>(kind));
    Digest digest;
    for (const auto& [rows, cols] : shapes) {
        const Weights first(source, kind, rows, cols), second(source, U8, 20, cols);
        const std::vector<Segment> segments = {first.segment, second.segment};
        const Matrix weights = matrix(segments, cols);
        for (const int64_t tokens : {1, 3, 14, 38, 51}) {
            const std::vector<float> x = source.floats(tokens * cols, source.below(2) ? 1.0f : 0x1p-9f);
            const std::vector<float> bias = source.floats(weights.rows);
            std::vector<float> out(static_cast<size_t>(tokens * weights.rows));
            product(weights, x, tokens, nullptr, out, false, 1);
            digest.add(out);
            product(weights, x, tokens, &bias, out, true, 3);
            digest.add(out);
        }
        const int64_t rows_wanted[] = {0, rows - 1, rows, rows + 19};
        std::vector<float> out(static_cast<size_t>(4 * cols));
        kernels_in_use().linear.gather(weights, rows_wanted, 4, 2.5f, out.data());
        digest.add(out);
    }
    for (const float value : {127.0f, -127.0f}) {  // the largest sums of products
        const Weights largest(source, kind, 16, 64, true);
        const std::vector<Segment> segments = {largest.segment};
        std::vector<float> out(16);
        if (kind > BF16) product(matrix(segments, 64), std::vector<float>(64, value), 1, nullptr, out, false, 1);
        digest.add(out);
    }
    digest.print(name);
}

void quantized_activations() {
    Source source(1);
    Digest digest;
    for (const float scale : {0.0f, 0x1p-130f, 0x1p-60f, 1.0f, 0x1p60f})
        for (const int64_t cols : {32, 70, 5, 170, 576}) digest.add(quantize(source.floats(9 * cols, scale), 9, cols));
    digest.print("quantize");
}

// Pages of two sequences of up to LENGTH tokens, and their queries.
constexpr int64_t LENGTH = 150;

struct Attention {
    Heads heads;
    Scores rule;
    int64_t rotated;
    bool norms;
};

void attention(const Attention& shape, const char* name) {
    const Heads& heads = shape.heads;
    const int64_t dim = heads.head_dim, width = (heads.heads + 2 * heads.kv_heads) * dim, out_width = heads.heads * dim;
    const int64_t blocks = (LENGTH + heads.block_size - 1) / heads.block_size;
    const int64_t part = heads.kv_heads * heads.block_size * dim * 4, scales = heads.kv_heads * heads.block_size * (4 + 2 * kv_groups(dim));
    const AttentionKernels& kernel = kernels_in_use().attention;
    Source source(2);
    Digest digest;
    std::vector<char> memory(static_cast<size_t>((blocks + 1) * (2 * part + 2 * scales)));
    Pages pages{memory.data(), memory.data() + part, nullptr, nullptr, 2 * part + 2 * scales};
    if (heads.key_type >= PAGE_I8) pages.key_scales = memory.data() + 2 * part;
    if (heads.value_type >= PAGE_I8) pages.value_scales = memory.data() + 2 * part + scales;
    std::vector<int32_t> table(static_cast<size_t>(blocks)), positions;
    for (int64_t block = 0; block < blocks; ++block) table[static_cast<size_t>(block)] = static_cast<int32_t>(blocks - block);
    std::vector<const int32_t*> tables(LENGTH, table.data());
    for (int32_t position = 0; position < LENGTH; ++position) positions.push_back(position);
    const std::vector<float> turns = source.floats(LENGTH * shape.rotated, 0.5f), norms = source.floats(2 * dim);
    const Rotation rotation{turns.data(), shape.rotated, shape.norms ? norms.data() : nullptr, norms.data() + dim, 1e-5f};
    std::vector<float> qkv = source.floats(LENGTH * width), scratch(static_cast<size_t>(attention_scratch(heads)));
    kernel.rotate_store(heads, rotation, pages, qkv.data(), width, LENGTH, positions.data(), tables.data());
    digest.add(qkv);
    digest.add(memory);
    std::vector<float> out(static_cast<size_t>(LENGTH * out_width));
    std::vector<Quantized> quantized(static_cast<size_t>(LENGTH * num_blocks(out_width)));
    std::memset(static_cast<void*>(quantized.data()), 0, quantized.size() * sizeof(Quantized));
    const auto queries = [&](int64_t first, int64_t count) {
        return Queries{qkv.data() + first * width, width,     first,
                       count,                      table.data(), out.data() + first * out_width,
                       out_width,                  dim % BLOCK ? nullptr : quantized.data() + first * num_blocks(out_width),
                       num_blocks(out_width)};
    };
    const int64_t most = attention_queries(heads), last = LENGTH - 1, tiles = last / TILE + 1;
    for (int64_t kv_head = 0; kv_head < heads.kv_heads; ++kv_head) {
        for (int64_t first = 0; first < LENGTH - 20; first += most)
            kernel.attend(heads, shape.rule, pages, queries(first, first + most < LENGTH - 20 ? most : LENGTH - 20 - first),
                          kv_head, scratch.data());
        for (int64_t first = LENGTH - 20; first < last; ++first)
            kernel.attend(heads, shape.rule, pages, queries(first, 1), kv_head, scratch.data());
        if (shape.rule.window > 0) continue;
        std::vector<float> partials(static_cast<size_t>(tiles * partial_size(heads)));
        for (int64_t tile = 0; tile < tiles; ++tile)
            kernel.attend_part(heads, shape.rule, pages, queries(last, 1), kv_head, tile, tile + 1,
                               partials.data() + tile * partial_size(heads), scratch.data());
        kernel.merge(heads, queries(last, 1), kv_head, tiles, partials.data(), scratch.data());
    }
    digest.add(out);
    digest.add(quantized);
    digest.print(name);
}

void rows() {
    const RowKernels& kernel = kernels_in_use().rows;
    Source source(3);
    Digest digest;
    for (const int64_t width : {16, 24, 32, 97, 576}) {
        for (const float scale : {0x1p-20f, 1.0f, 0x1p13f}) {
            std::vector<float> x = source.floats(5 * width, scale), added = source.floats(5 * width, scale);
            const std::vector<float> weight = source.floats(width), gate_up = source.floats(10 * width, 4.0f * scale);
            std::vector<float> out(x.size());
            std::vector<Quantized> quantized = quantize(out, 5, width);
            kernel.norm(x.data(), nullptr, weight.data(), 1e-5f, 5, width, out.data(), nullptr);
            digest.add(out);
            kernel.norm(x.data(), added.data(), weight.data(), 1e-5f, 5, width, out.data(), quantized.data());
            digest.add(x), digest.add(out), digest.add(quantized);
            for (const int32_t activation : {SILU, GELU_TANH}) {
                kernel.gate(gate_up.data(), activation, 5, width, 0, width, out.data(), quantized.data(), width);
                digest.add(out), digest.add(quantized);
                if (width != BLOCK) continue;
                std::memset(static_cast<void*>(quantized.data()), 0, quantized.size() * sizeof(Quantized));
                kernel.gate(gate_up.data(), activation, 5, width, 0, width, nullptr, quantized.data(), width);
                digest.add(quantized);
            }
            kernel.cap(x.data(), 5 * width, 30.0f);
            digest.add(x);
            const int64_t top = kernel.argmax(x.data(), 5 * width);
            digest.add(&top, sizeof top);
        }
    }
    digest.print("rows");
}

void draw() {
    const float infinity = __builtin_inff();
    struct Filter {
        float temperature, top_p, min_p, typical_p;
        int32_t top_k;
    };
    const Filter filters[] = {{0.0f, infinity, -infinity, infinity, 0}, {1.0f, infinity, -infinity, infinity, 0},
                              {3.0f, infinity, -infinity, infinity, 40}, {0.7f, 0.9f, -infinity, infinity, 0},
                              {1.0f, infinity, -3.0f, infinity, 0},      {2.0f, infinity, -infinity, 0.8f, 0},
                              {1.5f, 0.95f, -7.0f, 0.7f, 100}};
    Source source(4);
    Digest digest;
    for (const int64_t vocab : {50, 700, 2001}) {
        std::vector<float> scratch(static_cast<size_t>(draw_scratch(vocab))), scores(static_cast<size_t>(vocab));
        std::vector<int32_t> tokens(300), bias_tokens(30);
        for (int32_t& token : tokens) token = source.below(static_cast<int32_t>(vocab));
        for (int32_t& token : bias_tokens) token = source.below(static_cast<int32_t>(vocab));
        const std::vector<float> biases = source.floats(30, 4.0f);
        std::vector<uint32_t> allowed(static_cast<size_t>(vocab + 31) / 32);
        for (uint32_t& word : allowed) word = source.below(3) == 0 ? 0xFFFFFFFF : source.bits();
        const int64_t words = static_cast<int64_t>(allowed.size());
        const SlotTables tables{tokens.data(), 300, bias_tokens.data(), biases.data(), 30, allowed.data(), words};
        const int32_t counts[] = {-1, 0, 20};
        int32_t measured[3], ranks[3] = {}, top_tokens[60] = {};
        float logprobs[3] = {}, top_logprobs[60] = {};
        const LogprobTable reported{counts, measured, logprobs, ranks, top_tokens, top_logprobs, 20};
        for (const Filter& filter : filters) {
            for (int32_t row = 0; row < 3; ++row) {
                std::vector<float> logits = source.floats(vocab, 3.0f);
                DrawParams params{};
                params.stream = static_cast<int64_t>(source.bits()) << 32 | source.bits();
                params.position = row == 0 ? source.below(10000) : 300;
                params.temperature = filter.temperature;
                params.top_k = filter.top_k;
                params.top_p = filter.top_p;
                params.log_min_p = filter.min_p;
                params.typical_p = filter.typical_p;
                params.prompt_length = 100;
                params.repetition = row == 0 ? 1.0f : 1.3f;
                params.presence = row == 2 ? 0.4f : 0.0f;
                params.frequency = row == 2 ? 0.2f : 0.0f;
                params.num_biases = row == 1 ? 30 : 0;
                params.masked = row == 2;
                const DrawKernels& kernel = kernels_in_use().draw;
                kernel.filter(logits.data(), vocab, params, tables, scores.data(), scratch.data());
                digest.add(scores);
                const int32_t token = kernel.draw(logits.data(), vocab, params, tables, &reported, row, scratch.data());
                digest.add(&token, sizeof token);
            }
            digest.add(logprobs, sizeof logprobs), digest.add(ranks, sizeof ranks);
            digest.add(top_tokens, sizeof top_tokens), digest.add(top_logprobs, sizeof top_logprobs);
        }
    }
    digest.print("draw");
}

struct AdapterCodes {
    AdapterCodes(Source& source, int64_t rows, int64_t cols)
        : codes(static_cast<size_t>(num_panels(rows) * panel_bytes(CODES, cols))),
          factor(penstock_pack_codes(source.floats(rows * cols).data(), rows, cols, 0, codes.data())) {}
    std::vector<uint8_t> codes;
    float factor;
};

void low_rank(int32_t kind, const char* name) {
    Source source(33);
    Digest digest;
    for (const auto& [inputs, rank, outputs] : {std::array<int64_t, 3>{7, 1, 5}, {64, 16, 48}, {97, 33, 50}}) {
        const Kind plain = kind == CODES ? F32 : static_cast<Kind>(kind);
        const Weights a(source, plain, rank, inputs), b(source, plain, outputs, rank);
        LowRankPart part{a.codes.data(), b.codes.data(), inputs, rank, outputs, 3, 0.7f, kind};
        const AdapterCodes coded_a(source, rank, inputs), coded_b(source, outputs, rank);
        if (kind == CODES) {
            part.a = coded_a.codes.data(), part.b = coded_b.codes.data();
            part.scale *= coded_a.factor * coded_b.factor;
        }
        const std::vector<int64_t> rows = {11, 2, 3, 5, 0, 7, 8, 1, 10, 4, 9, 6};
        const int64_t count = static_cast<int64_t>(rows.size()), stride = outputs + 9;
        const std::vector<float> x = source.floats(count * inputs);
        std::vector<float> out = source.floats(count * stride), shrunk(static_cast<size_t>(count * num_panels(rank) * PANEL));
        kernels_in_use().low_rank.shrink(part, x.data(), rows.data(), count, shrunk.data(), 0, num_panels(rank));
        kernels_in_use().low_rank.expand(part, shrunk.data(), rows.data(), count, out.data(), stride, 0,
                                         num_panels(outputs));
        digest.add(out);
    }
    digest.print(name);
}

void run_all() {
    const char* const kinds[] = {"f32", "f16", "bf16", "u4", "u4_offset", "u8", "u8_offset", "u8_halves"};
    static_assert(sizeof kinds / sizeof *kinds == NUM_KINDS, "a digest for each kind");
    quantized_activations();
    for (int kind = 0; kind < NUM_KINDS; ++kind)
        linear(static_cast<Kind>(kind), (std::string("linear_") + kinds[kind]).c_str());
    attention({{6, 2, 64, 16, PAGE_F32, PAGE_F32}, {0.3f, 0.0f, 0}, 64, true}, "attention_f32");
    attention({{6, 2, 64, 16, PAGE_F16, PAGE_F16}, {0.3f, 0.0f, 0}, 64, false}, "attention_f16");
    attention({{4, 2, 32, 16, PAGE_I8, PAGE_I8}, {0.3f, 2.0f, 0}, 32, true}, "attention_i8_softcap");
    attention({{3, 1, 24, 5, PAGE_F16, PAGE_F16}, {0.3f, 0.0f, 0}, 8, false}, "attention_odd_blocks");
    attention({{2, 2, 40, 1, PAGE_I8, PAGE_I8}, {0.3f, 1.5f, 37}, 40, false}, "attention_window");
    attention({{6, 2, 64, 16, PAGE_I4, PAGE_I4}, {0.3f, 0.0f, 0}, 64, true}, "attention_i4");
    attention({{5, 1, 128, 16, PAGE_I8, PAGE_I4}, {0.3f, 0.0f, 0}, 128, false}, "attention_i8_i4");
    attention({{4, 4, 80, 32, PAGE_I4, PAGE_F16}, {0.3f, 2.0f, 0}, 40, false}, "attention_i4_f16");
    attention({{4, 2, 96, 16, PAGE_F16, PAGE_I4}, {0.3f, 0.0f, 37}, 96, false}, "attention_f16_i4_window");
    attention({{3, 1, 24, 5, PAGE_I4, PAGE_I4}, {0.3f, 0.0f, 0}, 8, false}, "attention_i4_odd_blocks");
    rows();
    draw();
    low_rank(F16, "low_rank_f16");
    low_rank(F32, "low_rank_f32");
    low_rank(CODES, "low_rank_codes");
}

}  // namespace

int main() {
    for (const char* name : INSTRUCTION_SETS)
        if (penstock_select(name)) run_all();
    return 0;
}
