#include "low_rank_tasks.h"

#include <algorithm>

#include "kernels.h"

namespace penstock {

namespace {

constexpr int64_t LEAST_ROWS = 4, MOST_ROWS = 64;  // of a unit, if its adapter has so many
constexpr size_t UNITS_PER_THREAD = 4;             // with as many, threads end together though units are whole
constexpr int32_t MOST_SPLITS = 16;
constexpr int64_t SPLIT_BYTES = 128 << 10;  // at least: less is read sooner than threads agree on it

int64_t num_bytes(const LowRankPart& part) {
    if (part.a == nullptr) return 0;
    return num_panels(part.rank) * panel_bytes(part.kind, part.inputs) +
           num_panels(part.outputs) * panel_bytes(part.kind, part.rank);
}

// The begin of its matrices; the kernels fetch the rest while they multiply.
inline void fetch(const LowRankPart& part) {
    if (part.a == nullptr) return;
    const char* begin = static_cast<const char*>(part.a);
    for (int64_t at = 0; at < FETCHED_AHEAD; at += 64) __builtin_prefetch(begin + at);
}

}  // namespace

void LowRankTasks::plan(const std::vector<AdaptedRun>& runs, int threads) {
    adapted_.clear();
    rows_.clear();
    units_.clear();
    for (const AdaptedRun& run : runs)
        for (int64_t row = run.first; row < run.first + run.count; ++row) adapted_.push_back({run.adapter, row});
    if (adapted_.empty()) return;
    // Rows of one adapter together: its weights are read once for several of them.
    std::stable_sort(adapted_.begin(), adapted_.end(),
                     [](const AdaptedRow& a, const AdaptedRow& b) { return a.adapter < b.adapter; });
    const int64_t total = static_cast<int64_t>(adapted_.size());
    const int64_t most = threads == 1 ? MOST_ROWS : std::clamp(total / (2 * threads), LEAST_ROWS, MOST_ROWS);
    int64_t at = 0;
    for (const AdaptedRow& one : adapted_) {
        if (units_.empty() || units_.back().adapter != one.adapter || units_.back().rows == most)
            units_.push_back({one.adapter, rows_.size(), 0, at});
        rows_.push_back(one.row);
        units_.back().rows += 1;
        at += one.adapter->row_floats;
    }
    if (static_cast<int64_t>(shrunk_.size()) < at) shrunk_.resize(static_cast<size_t>(at));
    threads_per_unit_ = threads / num_units();
    by_part_ = threads > 1 && units_.size() < UNITS_PER_THREAD * static_cast<size_t>(threads);
}

int32_t LowRankTasks::splits(int64_t site, int32_t parts) const {
    if (threads_per_unit_ <= 1) return 1;
    int64_t largest = 0;
    for (const Unit& unit : units_)
        for (int32_t part = 0; part < parts; ++part)
            largest = std::max(largest, num_bytes(unit.adapter->parts[site * MOST_PARTS + part]));
    return std::clamp<int32_t>(std::min<int64_t>(threads_per_unit_, largest / SPLIT_BYTES), 1, MOST_SPLITS);
}

int32_t LowRankTasks::first_shares(int64_t site, int32_t parts) const {
    const int32_t split = splits(site, parts);
    return num_units() * (split > 1 ? parts * split : by_part_ ? parts : 1);
}

int32_t LowRankTasks::second_shares(int64_t site, int32_t parts) const {
    const int32_t split = splits(site, parts);
    return split > 1 ? num_units() * parts * split : 0;
}

float* LowRankTasks::shrunk(const Unit& unit, const LowRankPart* parts, int32_t part) {
    int64_t before = 0;
    for (int32_t index = 0; index < part; ++index)
        if (parts[index].a != nullptr) before += num_panels(parts[index].rank) * PANEL;
    return shrunk_.data() + unit.at + unit.rows * before;
}

void LowRankTasks::first(int64_t site, int32_t parts, const float* x, float* out, int64_t stride, int32_t share) {
    const int32_t splits = this->splits(site, parts), split = share % splits, task = share / splits;
    const bool whole = splits == 1 && !by_part_;
    const Unit& unit = units_[static_cast<size_t>(whole ? task : task / parts)];
    const LowRankPart* all = unit.adapter->parts + site * MOST_PARTS;
    const int32_t from = whole ? 0 : task % parts, to = whole ? parts : from + 1;
    const int64_t* rows = rows_.data() + unit.begin;
    if (whole && task + 1 < num_units()) fetch(units_[static_cast<size_t>(task) + 1].adapter->parts[site * MOST_PARTS]);
    for (int32_t part = from; part < to; ++part) {
        if (all[part].a == nullptr) continue;
        const int64_t panels = num_panels(all[part].rank);
        kernels().low_rank.shrink(all[part], x, rows, unit.rows, shrunk(unit, all, part), panels * split / splits,
                                  panels * (split + 1) / splits);
    }
    if (splits > 1) return;
    for (int32_t part = from; part < to; ++part) {
        if (all[part].a == nullptr) continue;
        kernels().low_rank.expand(all[part], shrunk(unit, all, part), rows, unit.rows, out, stride, 0,
                                  num_panels(all[part].outputs));
    }
}

void LowRankTasks::second(int64_t site, int32_t parts, float* out, int64_t stride, int32_t share) {
    const int32_t splits = this->splits(site, parts), split = share % splits, task = share / splits;
    const Unit& unit = units_[static_cast<size_t>(task / parts)];
    const LowRankPart* all = unit.adapter->parts + site * MOST_PARTS;
    const LowRankPart& part = all[task % parts];
    if (part.a == nullptr) return;
    const int64_t panels = num_panels(part.outputs);
    kernels().low_rank.expand(part, shrunk(unit, all, task % parts), rows_.data() + unit.begin, unit.rows, out, stride,
                              panels * split / splits, panels * (split + 1) / splits);
}

void LowRankTasks::embed(int64_t site, const int64_t* tokens, float scale, float* out, int64_t stride, int32_t share) {
    const Unit& unit = units_[static_cast<size_t>(share)];
    const LowRankPart& part = unit.adapter->parts[site * MOST_PARTS];
    if (part.a == nullptr) return;
    const int64_t* rows = rows_.data() + unit.begin;
    float* to = shrunk_.data() + unit.at;
    kernels().low_rank.gather(part, tokens, rows, unit.rows, scale, to);
    kernels().low_rank.expand(part, to, rows, unit.rows, out, stride, 0, num_panels(part.outputs));
}

}  // namespace penstock
