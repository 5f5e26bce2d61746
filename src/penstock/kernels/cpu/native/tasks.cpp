#include "tasks.h"

#include <algorithm>

#include "kernels.h"

namespace penstock {

namespace {

// In multiplications; about a microsecond.
constexpr int64_t SMALLEST_BUNDLE = 50'000;
constexpr int64_t BUNDLES_PER_THREAD = 16;
constexpr int64_t PARTS_PER_THREAD = 4;  // of single queries, whose results must be merged

}  // namespace

void AttentionTasks::add(const Task& task, int64_t cost) {
    tasks_.push_back(task);
    costs_.push_back(cost);
}

void AttentionTasks::plan(const Heads& heads, int64_t window, const std::vector<Span>& spans, int threads) {
    tasks_.clear();
    costs_.clear();
    splits_.clear();
    const int64_t per_key = 2 * heads.heads / heads.kv_heads * heads.head_dim, most = attention_queries(heads);
    const auto keys = [window](int64_t position) {
        return window > 0 ? std::min(window, position + 1) : position + 1;
    };
    int64_t singles = 0, partial_floats = 0;
    for (const Span& span : spans) singles += span.count == 1 ? heads.kv_heads : 0;
    for (const Span& span : spans) {  // expensive ones first
        if (span.count == 1) continue;
        for (int64_t first = (span.count - 1) / most * most; first >= 0; first -= most) {
            const int32_t count = static_cast<int32_t>(std::min(most, span.count - first)), skip = static_cast<int32_t>(first);
            const Span part{span.token + skip, span.out + skip, count, span.position + skip};
            for (int32_t kv_head = 0; kv_head < heads.kv_heads; ++kv_head)
                add({part, kv_head, 0, 0, -1}, per_key * count * keys(part.position + count / 2));
        }
    }
    for (const Span& span : spans) {
        if (span.count > 1) continue;
        const int64_t begin = (span.position + 1 - keys(span.position)) / TILE, end = span.position / TILE + 1;
        const int64_t tiles = end - begin;
        const int64_t parts = std::min(tiles, (PARTS_PER_THREAD * threads + singles - 1) / singles);
        for (int32_t kv_head = 0; kv_head < heads.kv_heads; ++kv_head) {
            if (parts <= 1 || threads == 1) {
                add({span, kv_head, 0, 0, -1}, per_key * keys(span.position));
                continue;
            }
            const int32_t split = static_cast<int32_t>(splits_.size());
            splits_.push_back({static_cast<int32_t>(parts), static_cast<int32_t>(begin), static_cast<int32_t>(tiles),
                               partial_floats});
            partial_floats += tiles * partial_size(heads);
            for (int64_t part = 0; part < parts; ++part)
                add({span, kv_head, static_cast<int32_t>(begin + tiles * part / parts),
                     static_cast<int32_t>(begin + tiles * (part + 1) / parts), split},
                    per_key * keys(span.position) / parts);
        }
    }
    int64_t total = 0, gathered = 0;
    for (const int64_t cost : costs_) total += cost;
    const int64_t enough = std::max(total / (BUNDLES_PER_THREAD * threads), SMALLEST_BUNDLE);
    bundles_.assign(1, 0);
    for (size_t index = 0; index < tasks_.size(); ++index) {
        gathered += costs_[index];
        if (gathered < enough && index + 1 < tasks_.size()) continue;
        bundles_.push_back(static_cast<int32_t>(index + 1));
        gathered = 0;
    }
    if (done_size_ < splits_.size()) {
        done_size_ = splits_.size() * 2;
        done_.reset(new std::atomic<int32_t>[done_size_]());
    }
    if (partials_.size() < static_cast<size_t>(partial_floats)) partials_.resize(static_cast<size_t>(partial_floats));
}

void AttentionTasks::run(const Heads& heads, const Operands& operands, int32_t share, float* scratch) {
    const AttentionKernels& kernel = kernels().attention;
    const int64_t width = heads.heads * heads.head_dim;
    for (int32_t index = bundles_[static_cast<size_t>(share)]; index < bundles_[static_cast<size_t>(share) + 1]; ++index) {
        const Task& task = tasks_[static_cast<size_t>(index)];
        Quantized* quantized = operands.quantized;
        const Queries queries{operands.qkv + task.span.token * operands.qkv_width,
                              operands.qkv_width,
                              task.span.position,
                              task.span.count,
                              operands.tables[task.span.token],
                              operands.out == nullptr ? nullptr : operands.out + task.span.out * width,
                              width,
                              quantized == nullptr ? nullptr : quantized + task.span.out * num_blocks(width),
                              num_blocks(width)};
        if (task.split < 0) {
            kernel.attend(heads, operands.rule, operands.pages, queries, task.kv_head, scratch);
            continue;
        }
        const Split& split = splits_[static_cast<size_t>(task.split)];
        float* partials = partials_.data() + split.partials;
        kernel.attend_part(heads, operands.rule, operands.pages, queries, task.kv_head, task.from, task.to,
                           partials + (task.from - split.first_tile) * partial_size(heads), scratch);
        std::atomic<int32_t>& done = done_[static_cast<size_t>(task.split)];
        if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < split.parts) continue;
        done.store(0, std::memory_order_relaxed);
        kernel.merge(heads, queries, task.kv_head, split.tiles, partials, scratch);
    }
}

}  // namespace penstock
