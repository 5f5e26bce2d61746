// Flash attention over paged KV, and the write of keys and values to the pages.
//
// A block of a layer's pages holds, for each KV head, the keys of its tokens by dimension and the values by token:
//
//   keys    [kv_heads][head_dim][block_size]      values  [kv_heads][block_size][head_dim]
//
// so that the scores of sixteen tokens are one register, and no sum runs across lanes. As int8 each head of each token
// has its own scale, [kv_heads][block_size] float32. A block is contiguous over all layers of a cache group.
//
// As int4 a byte holds two codes of one token, each a level (int4.h) times a scale. KV_GROUP dimensions of a head share a
// scale, the last group may have fewer; scales are float16, in INT4_UNIT:
//
//   keys    [kv_heads][head_dim / 2][block_size]  dimensions 2 i and 2 i + 1      scales [kv_heads][groups][block_size]
//   values  [kv_heads][block_size][head_dim / 2]  i and i + half of the group's   scales [kv_heads][block_size][groups]
//
// and what is stored are keys and values after a Hadamard transform of each head, which spreads outliers over all
// dimensions (hadamard.h). Queries get the same transform, which leaves their products with keys as they are; and so does
// the result of attention, since the transform is its own inverse.
//
// Online softmax: the keys that a query sees are taken in tiles of TILE, by position in the sequence; each tile gives
// the largest score, the sum of weights and the weighted values, and the tiles are combined in order. That order is the
// same for one query and for many, however the work is divided: a query's result depends on its own sequence alone, to
// the last bit.
#pragma once

#include <cstdint>

#include "linear.h"

namespace penstock {

constexpr int64_t TILE = 128;

enum PageType : int32_t { PAGE_F32, PAGE_F16, PAGE_I8, PAGE_I4 };

constexpr int64_t KV_GROUP = 32;

inline int64_t kv_groups(int64_t head_dim) { return (head_dim + KV_GROUP - 1) / KV_GROUP; }

// Of one head of one token, without scales.
inline int64_t page_bytes(int32_t type, int64_t head_dim) {
    return type == PAGE_F32 ? 4 * head_dim : type == PAGE_F16 ? 2 * head_dim : type == PAGE_I8 ? head_dim : head_dim / 2;
}

// The pages of one layer: where each part of block 0 is, and how far it is to the next block.
struct Pages {
    void* keys;
    void* values;
    void* key_scales;  // PAGE_I8 and PAGE_I4 alone
    void* value_scales;
    int64_t block_bytes;

    // One head's part of a block, `size` numbers of type E each.
    template <class E>
    E* of(void* part, int64_t block, int64_t kv_head, int64_t size) const {
        return reinterpret_cast<E*>(static_cast<char*>(part) + block * block_bytes) + kv_head * size;
    }
};

// The same for all layers of a model.
struct Heads {
    int64_t heads, kv_heads, head_dim, block_size;
    int32_t key_type, value_type;  // PageType; PAGE_F32 only both
};

struct Rotation {
    const float* table;  // [positions][2][dim / 2]: cos, sin
    int64_t dim;         // the first `dim` dimensions of a head are rotated, x[i] with x[i + dim / 2]
    const float* q_norm;  // [head_dim] or null
    const float* k_norm;
    float eps;
};

struct Scores {
    float scale, softcap;  // softcap 0: none
    int64_t window;        // 0: none
};

// Queries of one sequence, at consecutive positions, and where its KV is.
struct Queries {
    const float* q;        // of the first: [heads][head_dim]; the next is q_stride further
    int64_t q_stride;
    int64_t first;         // position of the first
    int64_t count;
    const int32_t* table;  // blocks of the sequence
    float* out;            // of the first: [heads * head_dim], or null
    int64_t out_stride;
    Quantized* quantized;  // of the first, or null; head_dim is then a multiple of BLOCK
    int64_t quantized_stride;
};

// A partial result of split KV: a query's heads of one KV head over one tile, where several threads share a sequence.
// [group] times: largest, sum, values [head_dim]
inline int64_t partial_size(const Heads& heads) {
    return heads.heads / heads.kv_heads * (heads.head_dim + 2);
}

// The most queries of one `attend`: enough rows for its matrix products, few enough for the cache.
inline int64_t attention_queries(const Heads& heads) {
    const int64_t queries = 96 * heads.kv_heads / heads.heads;
    return queries < 1 ? 1 : queries > 64 ? 64 : queries;
}

// Floats of scratch memory, for any call.
inline int64_t attention_scratch(const Heads& heads) {
    const int64_t rows = attention_queries(heads) * (heads.heads / heads.kv_heads) + 8, dim = heads.head_dim + 16;
    return rows * (2 * dim + TILE + 4) + 2 * TILE * dim + (4 + kv_groups(heads.head_dim)) * TILE;
}

struct AttentionKernels {
    // Norm and rotate q and k of tokens [count][(heads + 2 kv_heads) head_dim], in place for q; write k and v to the
    // pages. `positions` and `tables` (each token's blocks) are by token.
    void (*rotate_store)(const Heads&, const Rotation&, const Pages&, float* qkv, int64_t stride, int64_t count,
                         const int32_t* positions, const int32_t* const* tables);
    // One KV head of up to attention_queries() queries.
    void (*attend)(const Heads&, const Scores&, const Pages&, const Queries&, int64_t kv_head, float* scratch);
    // One KV head of one query, tiles from .. to - 1 alone: [to - from] partials.
    void (*attend_part)(const Heads&, const Scores&, const Pages&, const Queries&, int64_t kv_head, int64_t from,
                        int64_t to, float* partials, float* scratch);
    // Combine the partials of all of a query's tiles.
    void (*merge)(const Heads&, const Queries&, int64_t kv_head, int64_t tiles, const float* partials, float* scratch);
};

}  // namespace penstock
