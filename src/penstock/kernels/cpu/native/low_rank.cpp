#include "kernels.h"
#include "lanes.h"

namespace penstock::PENSTOCK_ISA {
namespace {

static_assert(LANES == PANEL, "a panel's row is one vector");

// Rows that share each conversion of a weight: as many as there are registers for.
#if defined(__AVX512F__)
constexpr int MOST_ROWS = 8;
#else
constexpr int MOST_ROWS = 2;
#endif

template <int KIND>
inline Lanes sixteen(const void* codes, int64_t at) {
    if constexpr (KIND == F32) return load(static_cast<const float*>(codes) + at);
    return load_half(static_cast<const uint16_t*>(codes) + at);
}

// Products of a panel [cols][16] with T rows. Even and odd columns are summed apart, and the two sums at the end.
template <int KIND, int T>
inline void multiply(const void* codes, int64_t at, int64_t cols, const float* const* x, Lanes* sums) {
    const int64_t even = cols / 2 * 2;
    Lanes total[2][T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) total[0][t] = total[1][t] = broadcast(0.0f);
    for (int64_t col = 0; col < even; col += 2) {
        const Lanes first = sixteen<KIND>(codes, at + col * PANEL), second = sixteen<KIND>(codes, at + (col + 1) * PANEL);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            total[0][t] = fma(first, broadcast(x[t][col]), total[0][t]);
            total[1][t] = fma(second, broadcast(x[t][col + 1]), total[1][t]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        if (even < cols) total[0][t] = fma(sixteen<KIND>(codes, at + even * PANEL), broadcast(x[t][even]), total[0][t]);
        sums[t] = total[0][t] + total[1][t];
    }
}

template <int KIND, int T>
void shrink(const LowRankPart& part, const float* x, const int64_t* rows, int64_t count, float* shrunk, int64_t begin,
            int64_t end) {
    const int64_t width = num_panels(part.rank) * PANEL;
    const float* inputs[T];
    Lanes sums[T];
    for (; count >= T; count -= T, rows += T, shrunk += T * width) {
        for (int t = 0; t < T; ++t) inputs[t] = x + rows[t] * part.inputs;
        for (int64_t panel = begin; panel < end; ++panel) {
            multiply<KIND, T>(part.a, panel * part.inputs * PANEL, part.inputs, inputs, sums);
            for (int t = 0; t < T; ++t) store(shrunk + t * width + panel * PANEL, sums[t] * broadcast(part.scale));
        }
    }
    if constexpr (T > 1) {
        if (count > 0) shrink<KIND, T / 2>(part, x, rows, count, shrunk, begin, end);
    }
}

template <int KIND>
void gather(const LowRankPart& part, const int64_t* tokens, const int64_t* rows, int64_t count, float scale, float* shrunk) {
    const int64_t panels = num_panels(part.rank);
    const Lanes factor = broadcast(part.scale * scale);
    for (int64_t row = 0; row < count; ++row) {
        for (int64_t panel = 0; panel < panels; ++panel, shrunk += PANEL)
            store(shrunk, sixteen<KIND>(part.a, (panel * part.inputs + tokens[rows[row]]) * PANEL) * factor);
    }
}

template <int KIND, int T>
void expand(const LowRankPart& part, const float* shrunk, const int64_t* rows, int64_t count, float* out, int64_t stride,
            int64_t begin, int64_t end) {
    const int64_t width = num_panels(part.rank) * PANEL;
    const float* inputs[T];
    Lanes sums[T];
    for (; count >= T; count -= T, rows += T, shrunk += T * width) {
        for (int t = 0; t < T; ++t) inputs[t] = shrunk + t * width;
        for (int64_t panel = begin; panel < end; ++panel) {
            multiply<KIND, T>(part.b, panel * part.rank * PANEL, part.rank, inputs, sums);
            const int64_t first = panel * PANEL, left = part.outputs - first;
            for (int t = 0; t < T; ++t) {
                float* to = out + rows[t] * stride + part.offset + first;
                if (left >= PANEL) {
                    store(to, load(to) + sums[t]);
                } else {
                    store_first(to, load_first(to, static_cast<int>(left)) + sums[t], static_cast<int>(left));
                }
            }
        }
    }
    if constexpr (T > 1) {
        if (count > 0) expand<KIND, T / 2>(part, shrunk, rows, count, out, stride, begin, end);
    }
}

void shrink_rows(const LowRankPart& part, const float* x, const int64_t* rows, int64_t count, float* shrunk, int64_t begin,
                 int64_t end) {
    (part.kind == F16 ? shrink<F16, MOST_ROWS> : shrink<F32, MOST_ROWS>)(part, x, rows, count, shrunk, begin, end);
}

void gather_rows(const LowRankPart& part, const int64_t* tokens, const int64_t* rows, int64_t count, float scale,
                 float* shrunk) {
    (part.kind == F16 ? gather<F16> : gather<F32>)(part, tokens, rows, count, scale, shrunk);
}

void expand_rows(const LowRankPart& part, const float* shrunk, const int64_t* rows, int64_t count, float* out,
                 int64_t stride, int64_t begin, int64_t end) {
    (part.kind == F16 ? expand<F16, MOST_ROWS> : expand<F32, MOST_ROWS>)(part, shrunk, rows, count, out, stride, begin, end);
}

}  // namespace

void fill(LowRankKernels& kernels) {
    kernels.shrink = shrink_rows;
    kernels.gather = gather_rows;
    kernels.expand = expand_rows;
}

}  // namespace penstock::PENSTOCK_ISA
