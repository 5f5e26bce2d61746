// Tiles of the pages as the attention kernels read them.
#pragma once

#include "attention.h"
#include "lanes.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr int GROUPS = TILE / LANES;  // of sixteen keys, in a tile

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

inline Lanes load_scales(const uint16_t* from) { return load_half(from) * broadcast(INT4_UNIT); }

// The keys and values of a tile for one KV head, in groups of sixteen tokens: in the pages themselves, or copied.
struct View {
    int32_t key_type, value_type;  // PageType; of copies PAGE_F32
    const void* keys[GROUPS];  // [head_dim][key_stride], sixteen of each; of int4 [head_dim / 2]
    int64_t key_stride;
    const void* values[GROUPS];  // [16][value_stride]
    int64_t value_stride;  // numbers
    int from, to;  // keys of the tile that any of the queries sees
    const float* key_scales;  // of int8: [TILE], else null
    const float* value_scales;
    const uint16_t* key_group_scales[GROUPS];  // of int4 in the pages: [groups][key_stride], sixteen of each
    const float* value_group_scales;  // [TILE][groups]
    // To be fetched in time, where keys are read from the pages:
    int64_t value_bytes;  // of sixteen tokens' values, for each dimension
    const char* ahead[GROUPS];  // keys of the next tile; null: none
    int64_t ahead_stride;  // bytes to the next dimension; of int4, to the next two
    int64_t ahead_rows;  // such steps for each of sixteen tokens
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
        largest = scales + (2 + kv_groups(dim)) * TILE;
        sums = largest + rows;
        old_share = sums + rows;
        new_share = old_share + rows;
    }
};

// Pages of one KV head, as views of their tiles.
struct Tiles {
    const Heads& heads;
    const Pages& pages;
    const int32_t* table;
    int64_t kv_head;
    Scratch& scratch;

    // Whether keys and values can be read where they are.
    bool aligned() const {
        return heads.block_size % LANES == 0 && heads.head_dim % (heads.value_type == PAGE_I4 ? KV_GROUP : LANES) == 0;
    }

    int64_t block(int64_t position) const { return table[position / heads.block_size]; }
    int64_t offset(int64_t position) const { return position % heads.block_size; }

    const char* keys(int64_t position) const {  // [head_dim], block_size numbers apart
        const int64_t bytes = page_bytes(heads.key_type, heads.head_dim);
        return pages.of<char>(pages.keys, block(position), kv_head, bytes * heads.block_size) +
               offset(position) * bytes_of(heads.key_type);
    }
    const char* values(int64_t position) const {  // [head_dim]
        const int64_t bytes = page_bytes(heads.value_type, heads.head_dim);
        return pages.of<char>(pages.values, block(position), kv_head, bytes * heads.block_size) + offset(position) * bytes;
    }
    const uint16_t* key_group_scales(int64_t position) const {  // [groups], block_size apart
        const int64_t size = heads.block_size * kv_groups(heads.head_dim);
        return pages.of<uint16_t>(pages.key_scales, block(position), kv_head, size) + offset(position);
    }
    const uint16_t* value_group_scales(int64_t position) const {  // [groups]
        const int64_t groups = kv_groups(heads.head_dim);
        return pages.of<uint16_t>(pages.value_scales, block(position), kv_head, heads.block_size * groups) +
               offset(position) * groups;
    }

    // Of a number in the order of keys; int4 has bytes of two numbers.
    static int64_t bytes_of(int32_t type) { return type == PAGE_F32 ? 4 : type == PAGE_F16 ? 2 : 1; }

    // Scales of the keys that are seen; the others' are never used, but must be numbers.
    void copy_scales(void* scales, int64_t begin, int from, int to, float* out) const {
        for (int t = 0; t < TILE; ++t) out[t] = 0.0f;
        for (int t = from; t < to; ++t)
            out[t] = pages.of<float>(scales, block(begin + t), kv_head, heads.block_size)[offset(begin + t)];
    }

    // Of int8, for codes in the pages and for copied ones.
    void scale(View& view, int64_t begin) const {
        if (heads.key_type == PAGE_I8) {
            copy_scales(pages.key_scales, begin, view.from, view.to, scratch.scales);
            view.key_scales = scratch.scales;
        }
        if (heads.value_type == PAGE_I8) {
            copy_scales(pages.value_scales, begin, view.from, view.to, scratch.scales + TILE);
            view.value_scales = scratch.scales + TILE;
        }
    }

    // `last`: the last key that exists.
    View in_place(int64_t begin, int from, int to, int64_t last) const {
        View view{};
        const int64_t dim = heads.head_dim, groups = kv_groups(dim);
        const int64_t key_rows = heads.key_type == PAGE_I4 ? dim / 2 : dim;
        view.key_type = heads.key_type, view.value_type = heads.value_type;
        view.key_stride = heads.block_size, view.value_stride = dim;
        view.from = from, view.to = to;
        view.value_bytes = page_bytes(heads.value_type, LANES);
        view.ahead_stride = heads.block_size * bytes_of(heads.key_type);
        view.ahead_rows = key_rows / LANES;
        for (int group = 0; group < GROUPS; ++group) {
            const int64_t position = begin + TILE + group * LANES;
            if (position > last) break;
            view.ahead[group] = keys(position);
        }
        float* value_scales = scratch.scales + 2 * TILE;
        for (int group = from / LANES; group * LANES < to; ++group) {
            const int64_t position = begin + group * LANES;
            view.keys[group] = keys(position);
            view.values[group] = values(position);
            if (heads.key_type == PAGE_I4) view.key_group_scales[group] = key_group_scales(position);
            if (heads.value_type == PAGE_I4)
                for (int64_t at = 0; at < groups * LANES; at += LANES)
                    store(value_scales + group * LANES * groups + at, load_scales(value_group_scales(position) + at));
        }
        view.value_group_scales = value_scales;
        scale(view, begin);
        return view;
    }

    // int4 as the numbers themselves, int8 as codes.
    View copied(int64_t begin, int from, int to) const {
        const int64_t dim = heads.head_dim, wide = padded(dim);
        View view{};
        view.key_stride = LANES, view.value_stride = wide;
        view.from = from, view.to = to;
        for (int group = 0; group < GROUPS; ++group) {
            view.keys[group] = scratch.keys + group * LANES * dim;
            view.values[group] = scratch.values + group * LANES * wide;
        }
        if (aligned()) {
            const View source = in_place(begin, from, to, 0);
            for (int group = from / LANES; group * LANES < to; ++group) {
                copy_keys(source, group, scratch.keys + group * LANES * dim);
                copy_values(source, group, scratch.values + group * LANES * wide);
            }
        } else {
            for (int t = from; t < to; ++t) copy_token(begin + t, t);
        }
        scale(view, begin);
        return view;
    }

    template <class E>
    void copy_keys_as(const void* from, float* to) const {
        const E* keys = static_cast<const E*>(from);
        for (int64_t d = 0; d < heads.head_dim; ++d) store(to + d * LANES, load_sixteen(keys + d * heads.block_size));
    }
    template <class E>
    void copy_values_as(const void* from, float* to) const {
        const E* values = static_cast<const E*>(from);
        for (int64_t at = 0; at < LANES * heads.head_dim; at += LANES) store(to + at, load_sixteen(values + at));
    }

    void copy_keys(const View& source, int group, float* to) const {
        switch (heads.key_type) {
            case PAGE_F32: return copy_keys_as<float>(source.keys[group], to);
            case PAGE_F16: return copy_keys_as<uint16_t>(source.keys[group], to);
            case PAGE_I8: return copy_keys_as<int8_t>(source.keys[group], to);
        }
        const uint8_t* codes = static_cast<const uint8_t*>(source.keys[group]);
        for (int64_t d = 0; d < heads.head_dim; d += 2, codes += heads.block_size) {
            const Lanes scale = load_scales(source.key_group_scales[group] + d / KV_GROUP * heads.block_size);
            Lanes low, high;
            load_nibbles(codes, low, high);
            store(to + d * LANES, low * scale);
            store(to + (d + 1) * LANES, high * scale);
        }
    }

    void copy_values(const View& source, int group, float* to) const {
        switch (heads.value_type) {
            case PAGE_F32: return copy_values_as<float>(source.values[group], to);
            case PAGE_F16: return copy_values_as<uint16_t>(source.values[group], to);
            case PAGE_I8: return copy_values_as<int8_t>(source.values[group], to);
        }
        const uint8_t* codes = static_cast<const uint8_t*>(source.values[group]);
        const float* scales = source.value_group_scales + group * LANES * kv_groups(heads.head_dim);
        for (int64_t at = 0; at < LANES * heads.head_dim; at += KV_GROUP, codes += LANES, ++scales) {
            Lanes low, high;
            load_nibbles(codes, low, high);
            store(to + at, low * broadcast(*scales));
            store(to + at + LANES, high * broadcast(*scales));
        }
    }

    // Dimension d of a key or value at `from`, `stride` numbers apart.
    static float number(int32_t type, const char* from, int64_t d, int64_t stride) {
        switch (type) {
            case PAGE_F32: return load_one(reinterpret_cast<const float*>(from) + d * stride);
            case PAGE_F16: return load_one(reinterpret_cast<const uint16_t*>(from) + d * stride);
            default: return load_one(reinterpret_cast<const int8_t*>(from) + d * stride);
        }
    }

    void copy_token(int64_t position, int t) const {
        const int64_t dim = heads.head_dim, wide = padded(dim), size = heads.block_size;
        const char *key = keys(position), *value = values(position);
        float* key_copy = scratch.keys + t / LANES * LANES * dim + t % LANES;
        float* value_copy = scratch.values + t * wide;
        for (int64_t d = 0; d < dim; ++d) {
            if (heads.key_type != PAGE_I4) {
                key_copy[d * LANES] = number(heads.key_type, key, d, size);
            } else {
                const float scale = load_one(key_group_scales(position) + d / KV_GROUP * size) * INT4_UNIT;
                key_copy[d * LANES] = level(key[d / 2 * size], d % 2 != 0) * scale;
            }
            if (heads.value_type != PAGE_I4) {
                value_copy[d] = number(heads.value_type, value, d, 1);
            } else {
                const int64_t first = d / KV_GROUP * KV_GROUP, half = least(dim - first, KV_GROUP) / 2, at = d - first;
                const float scale = load_one(value_group_scales(position) + d / KV_GROUP) * INT4_UNIT;
                value_copy[d] = level(value[first / 2 + at % half], at >= half) * scale;
            }
        }
        for (int64_t d = dim; d < wide; ++d) value_copy[d] = 0.0f;
    }

    static float level(char pair, bool high) {
        const int both = static_cast<uint8_t>(pair);
        return INT4_LEVELS[high ? both >> 4 : both & 15];
    }
};

}  // namespace
}  // namespace penstock::PENSTOCK_ISA
