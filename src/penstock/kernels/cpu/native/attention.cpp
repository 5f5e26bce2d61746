#include "attention.h"

#include <cstring>

#include "hadamard.h"
#include "kernels.h"
#include "kv_view.h"
#include "lanes.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr float LOWEST = -1e38f;  // of scores; masked ones are -inf
constexpr float HIDDEN = -__builtin_inff();

// Rows of queries that are taken together, and groups of keys or lanes of values: as many sums as there are registers.
#if defined(__AVX512F__)
constexpr int SCORE_ROWS = 8, SCORE_GROUPS = 2, VALUE_ROWS = 4, VALUE_LANES = 4;
#else
constexpr int SCORE_ROWS = 4, SCORE_GROUPS = 1, VALUE_ROWS = 2, VALUE_LANES = 2;
#endif

// Into L2: L1 has too few fill buffers (measured: 26 against 39 us for 600 keys).
inline void fetch(const void* at) { __builtin_prefetch(at, 0, 2); }

struct Int4 {};  // two codes in a byte

template <class E>
constexpr bool IS_INT4 = false;
template <>
constexpr bool IS_INT4<Int4> = true;

// q [R][dim] · keys of G groups from `group` on -> out [R][TILE]. Where keys are read from the pages, their values are
// fetched. Not inline, as `weigh`: their loops need all registers.
template <class E, int R, int G>
__attribute__((noinline)) void score(const float* q, const View& view, int group, int64_t dim, float* out) {
    Lanes sums[R][G];
    const E* key_at[G];
    const char* value_at[G];
    const int64_t key_stride = view.key_stride, value_bytes = view.value_bytes;
    for (int g = 0; g < G; ++g) {
        key_at[g] = static_cast<const E*>(view.keys[group + g]);
        value_at[g] = static_cast<const char*>(view.values[group + g]);
    }
    for (int r = 0; r < R; ++r)
        for (int g = 0; g < G; ++g) sums[r][g] = broadcast(0.0f);
    for (int64_t d = 0; d < dim; ++d) {
        Lanes key[G];
        for (int g = 0; g < G; ++g) {
            key[g] = load_sixteen(key_at[g]);
            key_at[g] += key_stride;
            if (sizeof(E) < sizeof(float)) fetch(value_at[g]), value_at[g] += value_bytes;
        }
        for (int r = 0; r < R; ++r) {
            const Lanes x = broadcast(q[r * dim + d]);
            for (int g = 0; g < G; ++g) sums[r][g] = fma(x, key[g], sums[r][g]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int g = 0; g < G; ++g) store(out + (group + g) * LANES + r * TILE, sums[r][g]);
}

// The same of int4, two dimensions at a time.
template <int R, int G>
__attribute__((noinline)) void score_int4(const float* q, const View& view, int group, int64_t dim, float* out) {
    Lanes sums[R][G];
    const uint8_t* key_at[G];
    const uint16_t* scale_at[G];
    const char* value_at[G];
    const int64_t key_stride = view.key_stride, value_bytes = 2 * view.value_bytes;
    for (int g = 0; g < G; ++g) {
        key_at[g] = static_cast<const uint8_t*>(view.keys[group + g]);
        scale_at[g] = view.key_group_scales[group + g];
        value_at[g] = static_cast<const char*>(view.values[group + g]);
    }
    for (int r = 0; r < R; ++r)
        for (int g = 0; g < G; ++g) sums[r][g] = broadcast(0.0f);
    for (int64_t first = 0; first < dim; first += KV_GROUP) {
        Lanes scale[G];
        for (int g = 0; g < G; ++g) scale[g] = load_scales(scale_at[g]), scale_at[g] += key_stride;
        for (int64_t d = first; d < least(first + KV_GROUP, dim); d += 2) {
            Lanes low[G], high[G];
            for (int g = 0; g < G; ++g) {
                load_nibbles(key_at[g], low[g], high[g]);
                low[g] = low[g] * scale[g], high[g] = high[g] * scale[g];
                key_at[g] += key_stride;
                fetch(value_at[g]), value_at[g] += value_bytes;
            }
            for (int r = 0; r < R; ++r) {
                const Lanes x = broadcast(q[r * dim + d]), y = broadcast(q[r * dim + d + 1]);
                for (int g = 0; g < G; ++g) sums[r][g] = fma(y, high[g], fma(x, low[g], sums[r][g]));
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int g = 0; g < G; ++g) store(out + (group + g) * LANES + r * TILE, sums[r][g]);
}

// All groups of a view, several at a time.
template <int R, class Score, class ScoreOne>
void score_groups(const View& view, Score score_some, ScoreOne score_one) {
    constexpr int G = R <= 3 ? 2 * SCORE_GROUPS : SCORE_GROUPS;
    int group = view.from / LANES;
    const int end = (view.to + LANES - 1) / LANES;
    for (; group + G <= end; group += G) score_some(group);
    for (; group < end; ++group) score_one(group);
}

template <class E, int R>
void score_as(const float* q, const View& view, int64_t dim, float* out) {
    constexpr int G = R <= 3 ? 2 * SCORE_GROUPS : SCORE_GROUPS;
    score_groups<R>(
        view, [&](int group) { score<E, R, G>(q, view, group, dim, out); },
        [&](int group) { score<E, R, 1>(q, view, group, dim, out); });
}

template <int R>
void score_rows(const float* q, const View& view, int64_t dim, float* out) {
    constexpr int G = R <= 3 ? 2 * SCORE_GROUPS : SCORE_GROUPS;
    switch (view.key_type) {
        case PAGE_F32: return score_as<float, R>(q, view, dim, out);
        case PAGE_F16: return score_as<uint16_t, R>(q, view, dim, out);
        case PAGE_I8: return score_as<int8_t, R>(q, view, dim, out);
    }
    score_groups<R>(
        view, [&](int group) { score_int4<R, G>(q, view, group, dim, out); },
        [&](int group) { score_int4<R, 1>(q, view, group, dim, out); });
}

// V lanes of values from dimension d on: of token t in a group of sixteen.
template <class E, int V>
inline void load_values(const View& view, int group, int t, int64_t d, Lanes* value) {
    const E* from = static_cast<const E*>(view.values[group]) + t * view.value_stride + d;
    for (int v = 0; v < V; ++v) value[v] = load_sixteen(from + v * LANES);
}

template <int V>
inline void load_int4_values(const View& view, int group, int t, int64_t d, Lanes* value) {
    const uint8_t* from = static_cast<const uint8_t*>(view.values[group]) + (t * view.value_stride + d) / 2;
    const float* scales = view.value_group_scales + ((group * LANES + t) * view.value_stride + d) / KV_GROUP;
    for (int v = 0; v < V; v += 2) {
        const Lanes scale = broadcast(scales[v / 2]);
        load_nibbles(from + v / 2 * LANES, value[v], value[v + 1]);
        value[v] = value[v] * scale, value[v + 1] = value[v + 1] * scale;
    }
}

// weights [R][TILE] × values, dimensions from d on -> old [R][old_stride] * old_share + that * new_share
template <class E, int R, int V>
__attribute__((noinline)) void weigh(const float* weights, const View& view, int64_t d, const float* old_share,
                                     const float* new_share, float* mixed, int64_t stride) {
    Lanes sums[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sums[r][v] = broadcast(0.0f);
    for (int group = view.from / LANES; group * LANES < view.to; ++group) {
        const int begin = static_cast<int>(most(view.from - group * LANES, 0));
        const int end = static_cast<int>(least(view.to - group * LANES, LANES));
        const float* weight = weights + group * LANES;
        const char* ahead = d == 0 && sizeof(E) < sizeof(float) ? view.ahead[group] : nullptr;
        for (int t = begin; t < end; ++t) {
            if (ahead != nullptr) {
                const char* some = ahead + t * view.ahead_rows * view.ahead_stride;
                for (int64_t at = 0; at < view.ahead_rows; ++at) fetch(some + at * view.ahead_stride);
            }
            Lanes value[V];
            if constexpr (IS_INT4<E>)
                load_int4_values<V>(view, group, t, d, value);
            else
                load_values<E, V>(view, group, t, d, value);
            for (int r = 0; r < R; ++r) {
                const Lanes x = broadcast(weight[r * TILE + t]);
                for (int v = 0; v < V; ++v) sums[r][v] = fma(x, value[v], sums[r][v]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        const Lanes kept = broadcast(old_share[r]), added = broadcast(new_share[r]);
        for (int v = 0; v < V; ++v) {
            float* at = mixed + r * stride + d + v * LANES;
            store(at, fma(sums[r][v], added, load(at) * kept));
        }
    }
}

template <class E, int R>
void weigh_as(const float* weights, const View& view, int64_t dim, const float* old_share, const float* new_share,
              float* mixed, int64_t stride) {
    constexpr int V = R <= 2 ? 4 : VALUE_LANES, LAST = IS_INT4<E> ? 2 : 1;
    int64_t d = 0;
    for (; d + V * LANES <= dim; d += V * LANES) weigh<E, R, V>(weights, view, d, old_share, new_share, mixed, stride);
    for (; d < dim; d += LAST * LANES) weigh<E, R, LAST>(weights, view, d, old_share, new_share, mixed, stride);
}

template <int R>
void weigh_rows(const float* weights, const View& view, int64_t dim, const float* old_share, const float* new_share,
                float* mixed, int64_t stride) {
    switch (view.value_type) {
        case PAGE_F32: return weigh_as<float, R>(weights, view, dim, old_share, new_share, mixed, stride);
        case PAGE_F16: return weigh_as<uint16_t, R>(weights, view, dim, old_share, new_share, mixed, stride);
        case PAGE_I8: return weigh_as<int8_t, R>(weights, view, dim, old_share, new_share, mixed, stride);
        case PAGE_I4: return weigh_as<Int4, R>(weights, view, dim, old_share, new_share, mixed, stride);
    }
}

// Scores of one query, of which from .. to - 1 are seen, by the rule; others in the view become -inf. Gives the largest.
float scale_scores(float* scores, const Scores& rule, const View& view, int from, int to) {
    const int first = view.from / LANES, end = (view.to + LANES - 1) / LANES;
    const Lanes scale = broadcast(rule.scale);
    Lanes top = broadcast(LOWEST);
    for (int group = first; group < end; ++group) {
        float* at = scores + group * LANES;
        Lanes x = load(at) * scale;
        if (view.key_scales != nullptr) x = x * load(view.key_scales + group * LANES);
        if (rule.softcap != 0.0f) x = tanh(x / broadcast(rule.softcap)) * broadcast(rule.softcap);
        if (from > group * LANES || to < (group + 1) * LANES) x = keep(x, from - group * LANES, to - group * LANES, HIDDEN);
        top = max(x, top);
        store(at, x);
    }
    return largest(top);
}

// Scores to weights e^(score - peak). Gives their sum.
float to_weights(float* scores, const View& view, float peak) {
    const int first = view.from / LANES, end = (view.to + LANES - 1) / LANES;
    Lanes total = broadcast(0.0f);
    for (int group = first; group < end; ++group) {
        float* at = scores + group * LANES;
        Lanes weight = exp(load(at) - broadcast(peak));
        total = total + weight;
        if (view.value_scales != nullptr) weight = weight * load(view.value_scales + group * LANES);
        store(at, weight);
    }
    return sum(total);
}

// One step of the online softmax: the factors of the tiles so far and of the next one.
inline void join(float& largest, float& sum, float next_largest, float next_sum, float& old_share, float& new_share) {
    const float top = next_largest > largest ? next_largest : largest;
    old_share = exp_one(largest - top);
    new_share = exp_one(next_largest - top);
    largest = top;
    sum = sum * old_share + next_sum * new_share;
}

// The same for `count` rows: `old_share` and `new_share` come in as the next tile's largest scores and sums.
inline void join_rows(float* largest, float* sums, float* old_share, float* new_share, int64_t count) {
    for (int64_t row = 0; row < count; row += LANES) {
        const int some = static_cast<int>(least(count - row, LANES));
        const Lanes last = load_first(largest + row, some), next = load_first(old_share + row, some);
        const Lanes top = where_less(last, next, next, last);
        const Lanes kept = exp(last - top), added = exp(next - top);
        const Lanes total = load_first(sums + row, some) * kept + load_first(new_share + row, some) * added;
        store_first(largest + row, top, some);
        store_first(sums + row, total, some);
        store_first(old_share + row, kept, some);
        store_first(new_share + row, added, some);
    }
}

// First key that a query sees.
inline int64_t first_seen(const Scores& rule, int64_t position) {
    return rule.window > 0 ? most(0, position - rule.window + 1) : 0;
}

// One query's heads over one tile: `mixed` [rows][wide] and its shares.
void attend_rows(const float* q, const Scores& rule, const View& view, int64_t dim, int64_t rows, Scratch& scratch,
                 float* mixed, int64_t stride, bool apart) {
    float* scores = scratch.scores;
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) score_rows<4>(q + row * dim, view, dim, scores + row * TILE);
    switch (rows - row) {
        case 3: score_rows<3>(q + row * dim, view, dim, scores + row * TILE); break;
        case 2: score_rows<2>(q + row * dim, view, dim, scores + row * TILE); break;
        case 1: score_rows<1>(q + row * dim, view, dim, scores + row * TILE); break;
    }
    for (row = 0; row < rows; ++row)
        scratch.old_share[row] = scale_scores(scores + row * TILE, rule, view, view.from, view.to);
    for (row = 0; row < rows; ++row) {
        scratch.new_share[row] = to_weights(scores + row * TILE, view, scratch.old_share[row]);
        if (!apart) continue;
        scratch.largest[row] = scratch.old_share[row];
        scratch.sums[row] = scratch.new_share[row];
        scratch.old_share[row] = 0.0f;
        scratch.new_share[row] = 1.0f;
    }
    if (!apart) join_rows(scratch.largest, scratch.sums, scratch.old_share, scratch.new_share, rows);
    row = 0;
    const auto weigh_some = [&](auto weigh_them) {
        weigh_them(scores + row * TILE, view, dim, scratch.old_share + row, scratch.new_share + row,
                   mixed + row * stride, stride);
    };
    for (; row + 4 <= rows; row += 4) weigh_some(weigh_rows<4>);
    switch (rows - row) {
        case 3: weigh_some(weigh_rows<3>); break;
        case 2: weigh_some(weigh_rows<2>); break;
        case 1: weigh_some(weigh_rows<1>); break;
    }
}

void start(Scratch& scratch, int64_t rows, int64_t wide) {
    for (int64_t row = 0; row < rows; ++row) scratch.largest[row] = LOWEST, scratch.sums[row] = 0.0f;
    std::memset(scratch.mixed, 0, static_cast<size_t>(rows * wide) * sizeof(float));
}

// mixed [count][group] -> the output of `count` queries, divided by the sums of weights
void finish(const Heads& heads, const Queries& queries, int64_t count, int64_t kv_head, float* mixed, int64_t wide,
            const float* sums) {
    const int64_t group = heads.heads / heads.kv_heads, dim = heads.head_dim, at = kv_head * group * dim;
    for (int64_t row = 0; row < count * group; ++row) {
        float* values = mixed + row * wide;
        float* out = queries.out == nullptr ? nullptr : queries.out + row / group * queries.out_stride + at + row % group * dim;
        const Lanes total = broadcast(sums[row]);
        for (int64_t d = 0; d < dim; d += LANES) {
            const Lanes value = load(values + d) / total;
            store(values + d, value);
            if (out != nullptr) store_first(out + d, value, static_cast<int>(least(dim - d, LANES)));
        }
        if (heads.value_type != PAGE_I4) continue;
        hadamard(values, dim);
        if (out != nullptr) std::memcpy(out, values, static_cast<size_t>(dim) * sizeof(float));
    }
    if (queries.quantized != nullptr)  // whole blocks: `wide` is head_dim
        table().linear.quantize(mixed, count, group * dim, queries.quantized + at / BLOCK, queries.quantized_stride);
}

// The heads of the queries that have a KV head, and rows of zeros up to `all_rows`: [all_rows][dim]
void copy_queries(const Heads& heads, const Queries& queries, int64_t kv_head, int64_t all_rows, float* to) {
    const int64_t group = heads.heads / heads.kv_heads, some = group * heads.head_dim;
    for (int64_t query = 0; query < queries.count; ++query) {
        const float* from = queries.q + query * queries.q_stride + kv_head * some;
        for (int64_t d = 0; d < some; d += LANES) {
            const int count = static_cast<int>(least(some - d, LANES));
            store_first(to + query * some + d, load_first(from + d, count), count);
        }
    }
    std::memset(to + queries.count * some, 0,
                static_cast<size_t>(all_rows * heads.head_dim - queries.count * some) * sizeof(float));
}

// [from, to) of a tile's keys that are seen by queries at positions first .. last.
inline void seen(const Scores& rule, int64_t begin, int64_t first, int64_t last, int& from, int& to) {
    from = static_cast<int>(most(first_seen(rule, first) - begin, 0));
    to = static_cast<int>(least(last + 1 - begin, TILE));
}

void attend_one(const Heads& heads, const Scores& rule, const Pages& pages, const Queries& queries, int64_t kv_head,
                int64_t first_tile, int64_t end_tile, float* partials, float* memory) {
    const int64_t group = heads.heads / heads.kv_heads, dim = heads.head_dim, wide = padded(dim);
    Scratch scratch(heads, group, memory);
    const Tiles tiles{heads, pages, queries.table, kv_head, scratch};
    const float* q = scratch.queries;
    copy_queries(heads, queries, kv_head, group, scratch.queries);
    start(scratch, group, wide);
    for (int64_t tile = first_tile; tile < end_tile; ++tile) {
        int from, to;
        seen(rule, tile * TILE, queries.first, queries.first, from, to);
        if (partials != nullptr) std::memset(scratch.mixed, 0, static_cast<size_t>(group * wide) * sizeof(float));
        if (tiles.aligned())
            attend_rows(q, rule, tiles.in_place(tile * TILE, from, to, queries.first), dim, group, scratch, scratch.mixed, wide,
                        partials != nullptr);
        else
            attend_rows(q, rule, tiles.copied(tile * TILE, from, to), dim, group, scratch, scratch.mixed, wide,
                        partials != nullptr);
        if (partials == nullptr) continue;
        for (int64_t g = 0; g < group; ++g, partials += dim + 2) {
            partials[0] = scratch.largest[g];
            partials[1] = scratch.sums[g];
            std::memcpy(partials + 2, scratch.mixed + g * wide, static_cast<size_t>(dim) * sizeof(float));
        }
    }
    if (partials == nullptr) finish(heads, queries, 1, kv_head, scratch.mixed, wide, scratch.sums);
}

// Many rows, some at a time, over one tile.
void attend_tile(const Heads& heads, const Scores& rule, const Queries& queries, View view, int64_t begin,
                 int64_t all_rows, Scratch& scratch) {
    const int64_t group = heads.heads / heads.kv_heads, dim = heads.head_dim, wide = padded(dim);
    for (int64_t row = 0; row < all_rows; row += SCORE_ROWS) {
        // Up to the last key that one of these rows sees: later ones would get weights of 0.
        const int64_t latest = least((row + SCORE_ROWS - 1) / group, queries.count - 1) + queries.first;
        view.to = static_cast<int>(least(latest + 1 - begin, TILE));
        if (view.to <= view.from) continue;
        score_as<float, SCORE_ROWS>(scratch.queries + row * dim, view, dim, scratch.scores);
        for (int64_t one = 0; one < SCORE_ROWS; ++one) {
            const int64_t position = queries.first + (row + one) / group;
            int from, to;
            seen(rule, begin, position, position, from, to);
            scratch.old_share[row + one] = scale_scores(scratch.scores + one * TILE, rule, view, from, to);
        }
        for (int64_t one = 0; one < SCORE_ROWS; ++one)
            scratch.new_share[row + one] = to_weights(scratch.scores + one * TILE, view, scratch.old_share[row + one]);
        join_rows(scratch.largest + row, scratch.sums + row, scratch.old_share + row, scratch.new_share + row, SCORE_ROWS);
        for (int64_t some = row; some < row + SCORE_ROWS; some += VALUE_ROWS)
            weigh_as<float, VALUE_ROWS>(scratch.scores + (some - row) * TILE, view, wide, scratch.old_share + some,
                                                 scratch.new_share + some, scratch.mixed + some * wide, wide);
    }
}

void attend_many(const Heads& heads, const Scores& rule, const Pages& pages, const Queries& queries, int64_t kv_head,
                 float* memory) {
    const int64_t group = heads.heads / heads.kv_heads, wide = padded(heads.head_dim);
    const int64_t rows = queries.count * group, all_rows = (rows + SCORE_ROWS - 1) / SCORE_ROWS * SCORE_ROWS;
    Scratch scratch(heads, all_rows, memory);
    const Tiles tiles{heads, pages, queries.table, kv_head, scratch};
    start(scratch, all_rows, wide);
    copy_queries(heads, queries, kv_head, all_rows, scratch.queries);
    const int64_t last = queries.first + queries.count - 1;
    for (int64_t begin = first_seen(rule, queries.first) / TILE * TILE; begin <= last; begin += TILE) {
        int from, to;
        seen(rule, begin, queries.first, last, from, to);
        attend_tile(heads, rule, queries, tiles.copied(begin, from, to), begin, all_rows, scratch);
    }
    finish(heads, queries, queries.count, kv_head, scratch.mixed, wide, scratch.sums);
}

void attend(const Heads& heads, const Scores& rule, const Pages& pages, const Queries& queries, int64_t kv_head,
            float* scratch) {
    if (queries.count > 1) return attend_many(heads, rule, pages, queries, kv_head, scratch);
    const int64_t first = first_seen(rule, queries.first) / TILE, end = queries.first / TILE + 1;
    attend_one(heads, rule, pages, queries, kv_head, first, end, nullptr, scratch);
}

void attend_part(const Heads& heads, const Scores& rule, const Pages& pages, const Queries& queries, int64_t kv_head,
                 int64_t from, int64_t to, float* partials, float* scratch) {
    attend_one(heads, rule, pages, queries, kv_head, from, to, partials, scratch);
}

void merge(const Heads& heads, const Queries& queries, int64_t kv_head, int64_t tiles, const float* partials,
           float* memory) {
    const int64_t group = heads.heads / heads.kv_heads, dim = heads.head_dim, wide = padded(dim);
    Scratch scratch(heads, group, memory);
    start(scratch, group, wide);
    for (int64_t tile = 0; tile < tiles; ++tile) {
        for (int64_t g = 0; g < group; ++g, partials += dim + 2) {
            float kept, added;
            join(scratch.largest[g], scratch.sums[g], partials[0], partials[1], kept, added);
            float* mixed = scratch.mixed + g * wide;
            for (int64_t d = 0; d < dim; d += LANES) {
                const Lanes next = load_first(partials + 2 + d, static_cast<int>(least(dim - d, LANES)));
                store(mixed + d, fma(next, broadcast(added), load(mixed + d) * broadcast(kept)));
            }
        }
    }
    finish(heads, queries, 1, kv_head, scratch.mixed, wide, scratch.sums);
}

}  // namespace

void fill(AttentionKernels& kernels) {
    kernels.attend = attend;
    kernels.attend_part = attend_part;
    kernels.merge = merge;
    fill_rotation(kernels);
}

}  // namespace penstock::PENSTOCK_ISA
