#include "attention.h"

#include <cstring>

#include "kernels.h"
#include "lanes.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr int GROUPS = TILE / LANES;  // of sixteen keys, in a tile
constexpr float LOWEST = -1e38f;      // of scores; masked ones are -inf
constexpr float HIDDEN = -__builtin_inff();

// Rows of queries that are taken together, and groups of keys or lanes of values: as many sums as there are registers.
#if defined(__AVX512F__)
constexpr int SCORE_ROWS = 8, SCORE_GROUPS = 2, VALUE_ROWS = 4, VALUE_LANES = 4;
#else
constexpr int SCORE_ROWS = 4, SCORE_GROUPS = 1, VALUE_ROWS = 2, VALUE_LANES = 2;
#endif

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t padded(int64_t dim) { return (dim + LANES - 1) / LANES * LANES; }

inline Lanes load_sixteen(const float* from) { return load(from); }
inline Lanes load_sixteen(const uint16_t* from) { return load_half(from); }
inline Lanes load_sixteen(const int8_t* from) { return load_bytes(from); }

inline float load_one(const float* from) { return *from; }
inline float load_one(const int8_t* from) { return *from; }
inline float load_one(const uint16_t* from) {
    uint16_t values[LANES] = {*from};
    return one(load_half(values));
}

// The keys and values of a tile for one KV head, in groups of sixteen tokens: in the pages themselves, or copied.
template <class E>
struct View {
    const E* keys[GROUPS];  // [head_dim][key_stride], sixteen of each
    int64_t key_stride;
    const E* values[GROUPS];  // [16][value_stride]
    int64_t value_stride;
    int from, to;  // keys of the tile that any of the queries sees
    const float* key_scales;  // [TILE], or null
    const float* value_scales;
    const E* ahead[GROUPS];  // keys of the next tile, to be fetched in time; null: none
};

// The scratch memory of one call.
struct Scratch {
    float *queries, *scores, *mixed, *keys, *values, *scales;
    float *largest, *sums, *old_share, *new_share;  // by row

    Scratch(const Heads& heads, int64_t rows, float* memory) {
        const int64_t dim = heads.head_dim, wide = padded(dim);
        queries = memory;
        scores = queries + rows * dim;
        mixed = scores + rows * TILE;
        keys = mixed + rows * wide;
        values = keys + TILE * dim;
        scales = values + TILE * wide;
        largest = scales + 2 * TILE;
        sums = largest + rows;
        old_share = sums + rows;
        new_share = old_share + rows;
    }
};

// Into L2: L1 has too few fill buffers (measured: 26 against 39 us for 600 keys).
inline void fetch(const void* at) { __builtin_prefetch(at, 0, 2); }

// q [R][dim] · keys of G groups -> out [R][TILE]. Where keys are read from the pages, their values are fetched.
// Not inline, as `weigh`: their loops need all registers.
template <class E, int R, int G>
__attribute__((noinline)) void score(const float* q, const E* const* keys, int64_t key_stride, const E* const* values,
                                     int64_t dim, float* out) {
    Lanes sums[R][G];
    const E* key_at[G];
    const E* value_at[G];
    for (int g = 0; g < G; ++g) key_at[g] = keys[g], value_at[g] = values[g];
    for (int r = 0; r < R; ++r)
        for (int g = 0; g < G; ++g) sums[r][g] = broadcast(0.0f);
    for (int64_t d = 0; d < dim; ++d) {
        Lanes key[G];
        for (int g = 0; g < G; ++g) {
            key[g] = load_sixteen(key_at[g]);
            key_at[g] += key_stride;
            if (sizeof(E) < sizeof(float)) fetch(value_at[g]), value_at[g] += LANES;
        }
        for (int r = 0; r < R; ++r) {
            const Lanes x = broadcast(q[r * dim + d]);
            for (int g = 0; g < G; ++g) sums[r][g] = fma(x, key[g], sums[r][g]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int g = 0; g < G; ++g) store(out + r * TILE + g * LANES, sums[r][g]);
}

template <class E, int R>
void score_groups(const float* q, const View<E>& view, int64_t dim, float* out) {
    constexpr int G = R <= 2 ? 2 * SCORE_GROUPS : SCORE_GROUPS;
    int group = view.from / LANES;
    const int end = (view.to + LANES - 1) / LANES;
    for (; group + G <= end; group += G)
        score<E, R, G>(q, view.keys + group, view.key_stride, view.values + group, dim, out + group * LANES);
    for (; group < end; ++group)
        score<E, R, 1>(q, view.keys + group, view.key_stride, view.values + group, dim, out + group * LANES);
}

// weights [R][TILE] × values, dimensions from d on -> old [R][old_stride] * old_share + that * new_share
template <class E, int R, int V>
__attribute__((noinline)) void weigh(const float* weights, const View<E>& view, int64_t d, const float* old_share,
                                     const float* new_share, float* mixed, int64_t stride) {
    Lanes sums[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sums[r][v] = broadcast(0.0f);
    for (int group = view.from / LANES; group * LANES < view.to; ++group) {
        const int begin = static_cast<int>(most(view.from - group * LANES, 0));
        const int end = static_cast<int>(least(view.to - group * LANES, LANES));
        const E* values = view.values[group] + d + begin * view.value_stride;
        const float* weight = weights + group * LANES;
        const E* ahead = d == 0 && sizeof(E) < sizeof(float) ? view.ahead[group] : nullptr;
        for (int t = begin; t < end; ++t, values += view.value_stride) {
            if (ahead != nullptr) {
                const E* some = ahead + t * (view.value_stride / LANES) * view.key_stride;
                for (int64_t at = 0; at < view.value_stride / LANES; ++at) fetch(some + at * view.key_stride);
            }
            Lanes value[V];
            for (int v = 0; v < V; ++v) value[v] = load_sixteen(values + v * LANES);
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
void weigh_dims(const float* weights, const View<E>& view, int64_t dim, const float* old_share, const float* new_share,
                float* mixed, int64_t stride) {
    constexpr int V = R <= 2 ? 4 : VALUE_LANES;
    int64_t d = 0;
    for (; d + V * LANES <= dim; d += V * LANES) weigh<E, R, V>(weights, view, d, old_share, new_share, mixed, stride);
    for (; d < dim; d += LANES) weigh<E, R, 1>(weights, view, d, old_share, new_share, mixed, stride);
}

// Scores of one query, of which from .. to - 1 are seen, by the rule; others in the view become -inf. Gives the largest.
template <class E>
float scale_scores(float* scores, const Scores& rule, const View<E>& view, int from, int to) {
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
template <class E>
float to_weights(float* scores, const View<E>& view, float peak) {
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

template <class E>
struct Tiles {
    const Heads& heads;
    const Pages& pages;
    const int32_t* table;
    int64_t kv_head;
    Scratch& scratch;

    // Whether keys and values can be read where they are.
    bool aligned() const { return heads.block_size % LANES == 0 && heads.head_dim % LANES == 0; }

    const E* keys(int64_t position) const {  // [head_dim], block_size apart
        const int64_t block = table[position / heads.block_size];
        return pages.of<E>(pages.keys, block, kv_head, heads.head_dim * heads.block_size) + position % heads.block_size;
    }
    const E* values(int64_t position) const {  // [head_dim]
        const int64_t block = table[position / heads.block_size];
        return pages.of<E>(pages.values, block, kv_head, heads.head_dim * heads.block_size) +
               position % heads.block_size * heads.head_dim;
    }

    // Scales of the keys that are seen; the others' are never used, but must be numbers.
    void copy_scales(void* scales, int64_t begin, int from, int to, float* out) const {
        for (int t = 0; t < TILE; ++t) out[t] = 0.0f;
        for (int t = from; t < to; ++t) {
            const int64_t block = table[(begin + t) / heads.block_size];
            out[t] = pages.of<float>(scales, block, kv_head, heads.block_size)[(begin + t) % heads.block_size];
        }
    }

    template <class F>
    void scale(View<F>& view, int64_t begin) const {
        view.key_scales = view.value_scales = nullptr;
        if (pages.key_scales == nullptr) return;
        copy_scales(pages.key_scales, begin, view.from, view.to, scratch.scales);
        copy_scales(pages.value_scales, begin, view.from, view.to, scratch.scales + TILE);
        view.key_scales = scratch.scales;
        view.value_scales = scratch.scales + TILE;
    }

    // `last`: the last key that exists.
    View<E> in_place(int64_t begin, int from, int to, int64_t last) const {
        View<E> view{{}, heads.block_size, {}, heads.head_dim, from, to, nullptr, nullptr, {}};
        for (int group = 0; group < GROUPS; ++group) {
            const int64_t position = begin + TILE + group * LANES;
            if (position > last) break;
            view.ahead[group] = keys(position);
        }
        for (int group = from / LANES; group * LANES < to; ++group) {
            view.keys[group] = keys(begin + group * LANES);
            view.values[group] = values(begin + group * LANES);
        }
        scale(view, begin);
        return view;
    }

    View<float> copied(int64_t begin, int from, int to) const {
        const int64_t dim = heads.head_dim, wide = padded(dim);
        View<float> view{{}, LANES, {}, wide, from, to, nullptr, nullptr, {}};
        for (int group = 0; group < GROUPS; ++group) {
            view.keys[group] = scratch.keys + group * LANES * dim;
            view.values[group] = scratch.values + group * LANES * wide;
        }
        if (aligned()) {
            const View<E> source = in_place(begin, from, to, 0);
            for (int group = from / LANES; group * LANES < to; ++group) {
                float* key_copy = scratch.keys + group * LANES * dim;
                float* value_copy = scratch.values + group * LANES * wide;
                for (int64_t d = 0; d < dim; ++d)
                    store(key_copy + d * LANES, load_sixteen(source.keys[group] + d * heads.block_size));
                for (int64_t at = 0; at < LANES * dim; at += LANES)
                    store(value_copy + at, load_sixteen(source.values[group] + at));
            }
        } else {
            for (int t = from; t < to; ++t) copy_token(begin + t, t);
        }
        scale(view, begin);
        return view;
    }

    void copy_token(int64_t position, int t) const {
        const int64_t dim = heads.head_dim, wide = padded(dim);
        const E* key = keys(position);
        const E* value = values(position);
        float* key_copy = scratch.keys + t / LANES * LANES * dim + t % LANES;
        float* value_copy = scratch.values + t * wide;
        for (int64_t d = 0; d < dim; ++d) key_copy[d * LANES] = load_one(key + d * heads.block_size);
        for (int64_t d = 0; d < dim; ++d) value_copy[d] = load_one(value + d);
        for (int64_t d = dim; d < wide; ++d) value_copy[d] = 0.0f;
    }
};

// One query's heads over one tile: `mixed` [rows][wide] and its shares.
template <class E>
void attend_rows(const float* q, const Scores& rule, const View<E>& view, int64_t dim, int64_t rows, Scratch& scratch,
                 float* mixed, int64_t stride, bool apart) {
    float* scores = scratch.scores;
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) score_groups<E, 4>(q + row * dim, view, dim, scores + row * TILE);
    switch (rows - row) {
        case 3: score_groups<E, 3>(q + row * dim, view, dim, scores + row * TILE); break;
        case 2: score_groups<E, 2>(q + row * dim, view, dim, scores + row * TILE); break;
        case 1: score_groups<E, 1>(q + row * dim, view, dim, scores + row * TILE); break;
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
    for (; row + 4 <= rows; row += 4) weigh_some(weigh_dims<E, 4>);
    switch (rows - row) {
        case 3: weigh_some(weigh_dims<E, 3>); break;
        case 2: weigh_some(weigh_dims<E, 2>); break;
        case 1: weigh_some(weigh_dims<E, 1>); break;
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

template <class E>
void attend_one(const Heads& heads, const Scores& rule, const Pages& pages, const Queries& queries, int64_t kv_head,
                int64_t first_tile, int64_t end_tile, float* partials, float* memory) {
    const int64_t group = heads.heads / heads.kv_heads, dim = heads.head_dim, wide = padded(dim);
    Scratch scratch(heads, group, memory);
    const Tiles<E> tiles{heads, pages, queries.table, kv_head, scratch};
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
void attend_tile(const Heads& heads, const Scores& rule, const Queries& queries, View<float> view, int64_t begin,
                 int64_t all_rows, Scratch& scratch) {
    const int64_t group = heads.heads / heads.kv_heads, dim = heads.head_dim, wide = padded(dim);
    for (int64_t row = 0; row < all_rows; row += SCORE_ROWS) {
        // Up to the last key that one of these rows sees: later ones would get weights of 0.
        const int64_t latest = least((row + SCORE_ROWS - 1) / group, queries.count - 1) + queries.first;
        view.to = static_cast<int>(least(latest + 1 - begin, TILE));
        if (view.to <= view.from) continue;
        score_groups<float, SCORE_ROWS>(scratch.queries + row * dim, view, dim, scratch.scores);
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
            weigh_dims<float, VALUE_ROWS>(scratch.scores + (some - row) * TILE, view, wide, scratch.old_share + some,
                                                 scratch.new_share + some, scratch.mixed + some * wide, wide);
    }
}

template <class E>
void attend_many(const Heads& heads, const Scores& rule, const Pages& pages, const Queries& queries, int64_t kv_head,
                 float* memory) {
    const int64_t group = heads.heads / heads.kv_heads, wide = padded(heads.head_dim);
    const int64_t rows = queries.count * group, all_rows = (rows + SCORE_ROWS - 1) / SCORE_ROWS * SCORE_ROWS;
    Scratch scratch(heads, all_rows, memory);
    const Tiles<E> tiles{heads, pages, queries.table, kv_head, scratch};
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
    if (queries.count == 1) {
        const int64_t first = first_seen(rule, queries.first) / TILE, end = queries.first / TILE + 1;
        switch (heads.type) {
            case PAGE_F32: return attend_one<float>(heads, rule, pages, queries, kv_head, first, end, nullptr, scratch);
            case PAGE_F16:
                return attend_one<uint16_t>(heads, rule, pages, queries, kv_head, first, end, nullptr, scratch);
            case PAGE_I8: return attend_one<int8_t>(heads, rule, pages, queries, kv_head, first, end, nullptr, scratch);
        }
    }
    switch (heads.type) {
        case PAGE_F32: return attend_many<float>(heads, rule, pages, queries, kv_head, scratch);
        case PAGE_F16: return attend_many<uint16_t>(heads, rule, pages, queries, kv_head, scratch);
        case PAGE_I8: return attend_many<int8_t>(heads, rule, pages, queries, kv_head, scratch);
    }
}

void attend_part(const Heads& heads, const Scores& rule, const Pages& pages, const Queries& queries, int64_t kv_head,
                 int64_t from, int64_t to, float* partials, float* scratch) {
    switch (heads.type) {
        case PAGE_F32: return attend_one<float>(heads, rule, pages, queries, kv_head, from, to, partials, scratch);
        case PAGE_F16: return attend_one<uint16_t>(heads, rule, pages, queries, kv_head, from, to, partials, scratch);
        case PAGE_I8: return attend_one<int8_t>(heads, rule, pages, queries, kv_head, from, to, partials, scratch);
    }
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
