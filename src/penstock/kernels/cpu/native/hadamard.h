// The Hadamard transform of one head, for int4 pages. Entries of its matrix are 1 and -1 over the root of the size: it is
// its own inverse, keeps products of vectors, and gives every dimension a share of each outlier.
#pragma once

#include "lanes.h"

namespace penstock::PENSTOCK_ISA {
namespace {

// Of each pair of lanes that are H apart: their sum, then their difference.
template <int H>
inline Lanes butterfly(Lanes x) {
    alignas(64) static const struct Signs {
        float values[LANES];
        constexpr Signs() : values() {
            for (int lane = 0; lane < LANES; ++lane) values[lane] = lane & H ? -1.0f : 1.0f;
        }
    } signs;
    return fma(x, load(signs.values), swap_lanes<H>(x));  // the product is exact
}

// x [dim] in place, in blocks of the largest power of two that divides dim: 64 of 64, 32 of 96, 16 of 80.
inline void hadamard(float* x, int64_t dim) {
    const int64_t block = dim & -dim;
    const Lanes factor = broadcast(1.0f / __builtin_sqrtf(static_cast<float>(block)));
    for (int64_t d = 0; d < dim; d += LANES) {
        const int count = dim - d < LANES ? static_cast<int>(dim - d) : LANES;
        Lanes values = load_first(x + d, count) * factor;
        if (block > 1) values = butterfly<1>(values);
        if (block > 2) values = butterfly<2>(values);
        if (block > 4) values = butterfly<4>(values);
        if (block > 8) values = butterfly<8>(values);
        store_first(x + d, values, count);
    }
    for (int64_t half = LANES; half < block; half *= 2)
        for (int64_t first = 0; first < dim; first += 2 * half)
            for (int64_t d = first; d < first + half; d += LANES) {
                const Lanes a = load(x + d), b = load(x + d + half);
                store(x + d, a + b);
                store(x + d + half, a - b);
            }
}

}  // namespace
}  // namespace penstock::PENSTOCK_ISA
