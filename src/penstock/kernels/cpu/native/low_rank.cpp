#include "kernels.h"
#include "lanes.h"

namespace penstock::PENSTOCK_ISA {
namespace {

static_assert(LANES == PANEL, "a panel's row is one vector");

// Sums of columns apart: one alone would wait for itself, and so would two of a single row.
constexpr int CHAINS = 4;

// Rows that share each conversion of a weight: as many as there are registers for.
#if defined(__AVX512F__)
constexpr int MOST_ROWS = 4;
#else
constexpr int MOST_ROWS = 1;
#endif

template <int KIND>
inline Lanes sixteen(const char* at) {
    if constexpr (KIND == F32) return load(reinterpret_cast<const float*>(at));
    if constexpr (KIND == CODES) return load_bytes(reinterpret_cast<const int8_t*>(at));
    return load_half(reinterpret_cast<const uint16_t*>(at));
}

// Adds the products of COUNT columns, from `col` on.
template <int KIND, int T, int COUNT>
inline void add_columns(const char* codes, const float* const* x, int64_t col, Lanes (*total)[T]) {
#pragma GCC unroll 4
    for (int i = 0; i < COUNT; ++i) {
        const Lanes sixteen_rows = sixteen<KIND>(codes + i * PANEL * (KIND == F32 ? 4 : KIND == F16 ? 2 : 1));
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) total[i % CHAINS][t] = fma(sixteen_rows, broadcast(x[t][col + i]), total[i % CHAINS][t]);
    }
}

// Products of a panel of `cols` with T rows.
template <int KIND, int T>
inline void multiply(const void* panels, int64_t panel, int64_t cols, const float* const* x, Lanes* sums) {
    constexpr int64_t BYTES = PANEL * (KIND == F32 ? 4 : KIND == F16 ? 2 : 1);  // of a column
    const char* codes = static_cast<const char*>(panels) + panel * panel_bytes(KIND, cols);
    Lanes total[CHAINS][T];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) total[0][t] = total[1][t] = total[2][t] = total[3][t] = broadcast(0.0f);
    int64_t col = 0;
    for (; col + CHAINS <= cols; col += CHAINS, codes += CHAINS * BYTES) {
        for (int64_t line = 0; line < CHAINS * BYTES; line += 64) __builtin_prefetch(codes + FETCHED_AHEAD + line);
        add_columns<KIND, T, CHAINS>(codes, x, col, total);
    }
    const int64_t left = cols - col;
    if (left == 1) add_columns<KIND, T, 1>(codes, x, col, total);
    if (left == 2) add_columns<KIND, T, 2>(codes, x, col, total);
    if (left == 3) add_columns<KIND, T, 3>(codes, x, col, total);
    codes += left * BYTES;
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
        sums[t] = (total[0][t] + total[1][t]) + (total[2][t] + total[3][t]);
        if constexpr (KIND == CODES) sums[t] = sums[t] * load_half(reinterpret_cast<const uint16_t*>(codes));
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
            multiply<KIND, T>(part.a, panel, part.inputs, inputs, sums);
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
    const int64_t bytes = PANEL * (KIND == F32 ? 4 : 2);
    const char* columns = static_cast<const char*>(part.a);
    const Lanes factor = broadcast(part.scale * scale);
    for (int64_t row = 0; row < count; ++row) {
        for (int64_t panel = 0; panel < panels; ++panel, shrunk += PANEL)
            store(shrunk, sixteen<KIND>(columns + (panel * part.inputs + tokens[rows[row]]) * bytes) * factor);
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
            multiply<KIND, T>(part.b, panel, part.rank, inputs, sums);
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
    const auto run = part.kind == CODES ? shrink<CODES, MOST_ROWS>
                     : part.kind == F16 ? shrink<F16, MOST_ROWS>
                                        : shrink<F32, MOST_ROWS>;
    run(part, x, rows, count, shrunk, begin, end);
}

// Of an embedding, which has no codes.
void gather_rows(const LowRankPart& part, const int64_t* tokens, const int64_t* rows, int64_t count, float scale,
                 float* shrunk) {
    (part.kind == F16 ? gather<F16> : gather<F32>)(part, tokens, rows, count, scale, shrunk);
}

void expand_rows(const LowRankPart& part, const float* shrunk, const int64_t* rows, int64_t count, float* out,
                 int64_t stride, int64_t begin, int64_t end) {
    const auto run = part.kind == CODES ? expand<CODES, MOST_ROWS>
                     : part.kind == F16 ? expand<F16, MOST_ROWS>
                                        : expand<F32, MOST_ROWS>;
    run(part, shrunk, rows, count, out, stride, begin, end);
}

}  // namespace

void fill(LowRankKernels& kernels) {
    kernels.shrink = shrink_rows;
    kernels.gather = gather_rows;
    kernels.expand = expand_rows;
}

}  // namespace penstock::PENSTOCK_ISA
