#include "low_rank.h"

#include <algorithm>

#include "kernels.h"

namespace penstock {

namespace {

constexpr int64_t UNIT_ROWS = 64;         // at most: of a long prompt all threads get some
constexpr int64_t UNITS_PER_THREAD = 4;   // at least, if there are as many rows
constexpr int32_t MOST_SPLITS = 8;

}  // namespace

void LowRankTasks::plan(const std::vector<AdaptedRun>& runs, int threads) {
    runs_.clear();
    units_.clear();
    int64_t total = 0, at = 0;
    for (const AdaptedRun& run : runs) total += run.count;
    if (total == 0) return;
    const int64_t per_unit = std::clamp<int64_t>(total / (UNITS_PER_THREAD * threads), 1, UNIT_ROWS);
    for (const AdaptedRun& run : runs)
        for (int64_t from = 0; from < run.count; from += per_unit)
            runs_.push_back({run.adapter, run.first + from, std::min(per_unit, run.count - from)});
    // Rows of one adapter side by side: its weights are read once, and then found in the cache.
    std::stable_sort(runs_.begin(), runs_.end(),
                     [](const AdaptedRun& a, const AdaptedRun& b) { return a.adapter < b.adapter; });
    for (size_t index = 0; index < runs_.size(); ++index) {
        const AdaptedRun& run = runs_[index];
        if (units_.empty() || units_.back().adapter != run.adapter || units_.back().rows + run.count > per_unit)
            units_.push_back({run.adapter, index, index, 0, 0});
        units_.back().end = index + 1;
        units_.back().rows += run.count;
    }
    for (Unit& unit : units_) {
        unit.at = at;
        at += unit.rows * unit.adapter->row_floats;
    }
    if (static_cast<int64_t>(shrunk_.size()) < at) shrunk_.resize(static_cast<size_t>(at));
    splits_ = std::clamp(threads / static_cast<int32_t>(units_.size()), 1, MOST_SPLITS);
}

float* LowRankTasks::shrunk(const Unit& unit, const LowRankPart* parts, int32_t part) {
    int64_t before = 0;
    for (int32_t index = 0; index < part; ++index)
        if (parts[index].shrink != nullptr) before += parts[index].shrink->rows;
    return shrunk_.data() + unit.at + unit.rows * before;
}

void LowRankTasks::shrink(int64_t site, int32_t parts, const float* x, int64_t width, int32_t share) {
    const Unit& unit = units_[static_cast<size_t>(share / parts)];
    const LowRankPart* all = unit.adapter->parts + site * MOST_PARTS;
    const LowRankPart& part = all[share % parts];
    if (part.shrink == nullptr) return;
    const int64_t rank = part.shrink->rows;
    const int64_t panels = num_panels(*part.shrink);
    float* out = shrunk(unit, all, share % parts);
    for (size_t index = unit.begin; index < unit.end; ++index) {
        const AdaptedRun& run = runs_[index];
        kernels().linear.linear(*part.shrink, x + run.first * width, nullptr, run.count, nullptr, out, rank, false, 0,
                                panels);
        for (int64_t at = 0; at < run.count * rank; ++at) out[at] *= part.scale;
        out += run.count * rank;
    }
}

void LowRankTasks::expand(int64_t site, int32_t parts, float* out, int64_t width, int32_t share) {
    const int32_t task = share / splits_, split = share % splits_;
    const Unit& unit = units_[static_cast<size_t>(task / parts)];
    const LowRankPart* all = unit.adapter->parts + site * MOST_PARTS;
    const LowRankPart& part = all[task % parts];
    if (part.shrink == nullptr) return;
    const int64_t panels = num_panels(*part.expand);
    const int64_t begin = panels * split / splits_, end = panels * (split + 1) / splits_;
    const float* from = shrunk(unit, all, task % parts);
    for (size_t index = unit.begin; index < unit.end; ++index) {
        const AdaptedRun& run = runs_[index];
        kernels().linear.linear(*part.expand, from, nullptr, run.count, nullptr, out + run.first * width + part.offset,
                                width, true, begin, end);
        from += run.count * part.shrink->rows;
    }
}

}  // namespace penstock
