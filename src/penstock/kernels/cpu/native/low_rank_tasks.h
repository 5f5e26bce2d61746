// How the low-rank deltas of a step are divided among threads: units of rows with one adapter, planned once per step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "low_rank.h"

namespace penstock {

// Consecutive rows of a value that have the same adapter.
struct AdaptedRun {
    const Adapter* adapter;
    int64_t first, count;
};

// A product has two stages. Usually the first does all: a thread takes a unit through both matrices, which lie one after the
// other in memory. If there are fewer units than threads and their matrices are large, the first stage computes x · Aᵀ and
// the second the product with Bᵀ, with the panels of each split among threads.
class LowRankTasks {
  public:
    void plan(const std::vector<AdaptedRun>& runs, int threads);

    // `parts`: of the product.
    int32_t first_shares(int64_t site, int32_t parts) const;
    int32_t second_shares(int64_t site, int32_t parts) const;
    int32_t embed_shares() const { return num_units(); }
    // `x`: the product's input; `out`: its output, rows of `stride`.
    void first(int64_t site, int32_t parts, const float* x, float* out, int64_t stride, int32_t share);
    void second(int64_t site, int32_t parts, float* out, int64_t stride, int32_t share);
    // Of the embedded `tokens`, which were multiplied by `scale`.
    void embed(int64_t site, const int64_t* tokens, float scale, float* out, int64_t stride, int32_t share);

  private:
    struct AdaptedRow {
        const Adapter* adapter;
        int64_t row;
    };
    struct Unit {
        const Adapter* adapter;
        size_t begin;  // of its rows
        int64_t rows;
        int64_t at;  // where its products x · Aᵀ lie
    };

    int32_t num_units() const { return static_cast<int32_t>(units_.size()); }
    // Of the panels of each part of a product.
    int32_t splits(int64_t site, int32_t parts) const;
    float* shrunk(const Unit& unit, const LowRankPart* parts, int32_t part);

    std::vector<AdaptedRow> adapted_;
    std::vector<int64_t> rows_;  // of the units, one after the other
    std::vector<Unit> units_;
    std::vector<float> shrunk_;
    int32_t threads_per_unit_ = 1;
    bool by_part_ = true;  // a share is a part of a unit, else all parts of a unit
};

}  // namespace penstock
