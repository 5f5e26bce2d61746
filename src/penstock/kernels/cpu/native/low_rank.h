// Low-rank deltas of adapters: out += (x · Aᵀ · scale) · Bᵀ for the rows of a step that have an adapter, each with its own.
//
// Two stages per product: all products x · Aᵀ, then all products with Bᵀ. Both matrices are panels of floats, read by the
// kernels of linear.h, so a row's delta depends on its own x and adapter alone, not on the batch or the threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "linear.h"

namespace penstock {

constexpr int32_t MOST_PARTS = 3;  // q, k and v

// Of one part of a product, such as k of q, k and v.
struct LowRankPart {
    const Matrix* shrink;  // [rank, in]; null: the adapter leaves the part alone
    const Matrix* expand;  // [out, rank]
    int64_t offset;        // of the part in the product
    float scale;
    int32_t unused;
};

struct Adapter {
    const LowRankPart* parts;  // [sites][MOST_PARTS]; a site is a product of a layer
    int64_t row_floats;        // the most ranks that the parts of one site have together
};

// Consecutive rows of a value that have the same adapter.
struct AdaptedRun {
    const Adapter* adapter;
    int64_t first, count;
};

class LowRankTasks {
  public:
    // Once per step: units of a few rows of one adapter, each computed by one thread.
    void plan(const std::vector<AdaptedRun>& runs, int threads);

    int32_t shrink_shares(int32_t parts) const { return static_cast<int32_t>(units_.size()) * parts; }
    int32_t expand_shares(int32_t parts) const { return shrink_shares(parts) * splits_; }
    void shrink(int64_t site, int32_t parts, const float* x, int64_t width, int32_t share);
    void expand(int64_t site, int32_t parts, float* out, int64_t width, int32_t share);

  private:
    struct Unit {
        const Adapter* adapter;
        size_t begin, end;  // runs
        int64_t rows;
        int64_t at;  // where its products x · Aᵀ lie
    };

    // The products x · Aᵀ of a unit's part, [rows][rank].
    float* shrunk(const Unit& unit, const LowRankPart* parts, int32_t part);

    std::vector<AdaptedRun> runs_;
    std::vector<Unit> units_;
    std::vector<float> shrunk_;
    int32_t splits_ = 1;  // of the outputs of a part
};

}  // namespace penstock
