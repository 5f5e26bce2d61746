// How a step's attention is divided among threads: tiles of queries, or split KV for single queries. Planned once per
// step for all layers of a cache group.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention.h"

namespace penstock {

// Queries of one sequence at consecutive positions.
struct Span {
    int32_t token;     // the first, among the packed tokens
    int32_t out;       // its row of the output
    int32_t count;
    int32_t position;  // of the first
};

class AttentionTasks {
  public:
    void plan(const Heads& heads, int64_t window, const std::vector<Span>& spans, int threads);

    int32_t shares() const { return static_cast<int32_t>(bundles_.size()) - 1; }

    struct Operands {
        const Scores& rule;
        const Pages& pages;
        const float* qkv;  // [tokens][qkv_width]
        int64_t qkv_width;
        const int32_t* const* tables;  // by token
        float* out;                    // [rows][heads * head_dim], or null
        Quantized* quantized;          // or null
    };
    void run(const Heads& heads, const Operands& operands, int32_t share, float* scratch);

  private:
    // Some queries of a span and one KV head; or some tiles of a single query.
    struct Task {
        Span span;
        int32_t kv_head;
        int32_t from, to;  // tiles, where there are several parts
        int32_t split;     // index of the query that has several parts (split KV); -1: it has one
    };
    struct Split {
        int32_t parts, first_tile, tiles;
        int64_t partials;  // where they begin
    };

    void add(const Task& task, int64_t cost);

    std::vector<Task> tasks_;
    std::vector<int64_t> costs_;
    std::vector<int32_t> bundles_;  // [shares + 1]: tasks of one share
    std::vector<Split> splits_;
    std::unique_ptr<std::atomic<int32_t>[]> done_;  // [splits] parts; 0 again once all are
    size_t done_size_ = 0;
    std::vector<float> partials_;
};

}  // namespace penstock
