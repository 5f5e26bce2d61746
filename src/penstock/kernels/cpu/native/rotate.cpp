// Head norms and rotary embedding (RoPE) of q and k, and the write of k and v to the pages.
#include "attention.h"
#include "hadamard.h"
#include "kernels.h"
#include "lanes.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr float LARGEST_HALF = 65504.0f;

inline int left(int64_t dim, int64_t d) { return dim - d < LANES ? static_cast<int>(dim - d) : LANES; }

void normalise(float* x, const float* weight, int64_t dim, float eps) {
    Lanes squares = broadcast(0.0f);
    for (int64_t d = 0; d < dim; d += LANES) {
        const Lanes value = load_first(x + d, left(dim, d));
        squares = fma(value, value, squares);
    }
    const Lanes factor = broadcast(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(dim) + eps));
    for (int64_t d = 0; d < dim; d += LANES) {
        const int count = left(dim, d);
        store_first(x + d, load_first(x + d, count) * factor * load_first(weight + d, count), count);
    }
}

void rotate(float* x, const float* cos, const float* sin, int64_t half) {
    for (int64_t d = 0; d < half; d += LANES) {
        const int count = left(half, d);
        const Lanes c = load_first(cos + d, count), s = load_first(sin + d, count);
        const Lanes a = load_first(x + d, count), b = load_first(x + half + d, count);
        store_first(x + d, fma(a, c, (broadcast(0.0f) - b) * s), count);
        store_first(x + half + d, fma(b, c, a * s), count);
    }
}

// Sixteen values in the form of the pages, -> `to`, `stride` apart. The int8 forms come multiplied by 1 / scale.
template <class E>
void put(E* to, int64_t stride, Lanes x, int count);

template <>
void put(float* to, int64_t stride, Lanes x, int count) {
    float values[LANES];
    store(values, x);
    for (int lane = 0; lane < count; ++lane) to[lane * stride] = values[lane];
}

template <>
void put(uint16_t* to, int64_t stride, Lanes x, int count) {
    uint16_t values[LANES];
    store_half(values, min(max(x, broadcast(-LARGEST_HALF)), broadcast(LARGEST_HALF)));
    for (int lane = 0; lane < count; ++lane) to[lane * stride] = values[lane];
}

template <>
void put(int8_t* to, int64_t stride, Lanes x, int count) {
    int8_t values[LANES];
    store_bytes(values, round(x));
    for (int lane = 0; lane < count; ++lane) to[lane * stride] = values[lane];
}

float int8_scale(const float* x, int64_t dim) {
    Lanes top = broadcast(0.0f);
    for (int64_t d = 0; d < dim; d += LANES) top = max(abs(load_first(x + d, left(dim, d))), top);
    return largest(top) / 127.0f;
}

// One head's key or value, dimension d at to[d * stride].
template <class E>
void write(const float* x, int64_t dim, E* to, int64_t stride, float* scale) {
    Lanes factor = broadcast(1.0f);
    if (scale != nullptr) {
        *scale = int8_scale(x, dim);
        factor = broadcast(*scale > 0.0f ? 1.0f / *scale : 0.0f);
    }
    for (int64_t d = 0; d < dim; d += LANES) {
        Lanes value = load_first(x + d, left(dim, d));
        if (scale != nullptr) value = value * factor;
        put<E>(to + d * stride, stride, value, left(dim, d));
    }
}

// The nearest level of each number, without sign: its place among the eight, and itself.
inline void nearest_levels(Lanes size, Lanes& place, Lanes& level) {
    const Lanes none = broadcast(0.0f), one = broadcast(1.0f);
    place = none;
    level = broadcast(INT4_LEVELS[8]);
    for (int next = 9; next < 16; ++next) {
        const float lower = INT4_LEVELS[next - 1], upper = INT4_LEVELS[next];
        const Lanes middle = broadcast((lower + upper) / 2.0f);
        place = place + where_less(middle, size, one, none);
        level = level + where_less(middle, size, broadcast(upper - lower), none);
    }
}

// Codes of a group of up to KV_GROUP numbers; gives their scale as float16. The scale that reaches the largest number is
// refined once, to the one with the least squared error for its codes.
uint16_t int4_codes(const float* x, int64_t count, int8_t* codes) {
    constexpr int PARTS = KV_GROUP / LANES;
    const Lanes none = broadcast(0.0f);
    Lanes values[PARTS], top = none, products = none, squares = none;
    for (int part = 0; part < PARTS; ++part) {
        values[part] = load_first(x + part * LANES, static_cast<int>(count) - part * LANES);
        top = max(abs(values[part]), top);
    }
    const float reaching = largest(top) / INT4_LEVELS[15];
    const Lanes first = broadcast(reaching > 0.0f ? 1.0f / reaching : 0.0f);
    for (int part = 0; part < PARTS; ++part) {
        Lanes place, level;
        nearest_levels(abs(values[part]) * first, place, level);
        level = keep(level, 0, static_cast<int>(count) - part * LANES, 0.0f);
        products = fma(abs(values[part]), level, products);
        squares = fma(level, level, squares);
    }
    uint16_t stored[LANES];
    store_half(stored, min(broadcast(sum(products) / sum(squares) / INT4_UNIT), broadcast(LARGEST_HALF)));
    const float scale = one(load_half(stored)) * INT4_UNIT;  // as it will be read
    const Lanes factor = broadcast(scale > 0.0f ? 1.0f / scale : 0.0f);
    for (int part = 0; part < PARTS; ++part) {
        Lanes place, level;
        nearest_levels(abs(values[part]) * factor, place, level);
        store_bytes(codes + part * LANES,
                    where_less(values[part], none, broadcast(7.0f) - place, broadcast(8.0f) + place));
    }
    return stored[0];
}

// One head's key or value of one token, byte i at to[i * stride]: with codes that are adjacent, or half a group apart.
void write_int4(const float* x, int64_t dim, uint8_t* to, int64_t stride, bool adjacent, uint16_t* scales,
                int64_t scale_stride) {
    for (int64_t first = 0; first < dim; first += KV_GROUP, scales += scale_stride) {
        const int64_t count = dim - first < KV_GROUP ? dim - first : KV_GROUP;
        const int64_t step = adjacent ? 2 : 1, apart = adjacent ? 1 : count / 2;
        int8_t codes[KV_GROUP];
        *scales = int4_codes(x + first, count, codes);
        for (int64_t i = 0; i < count / 2; ++i, to += stride)
            *to = static_cast<uint8_t>(codes[i * step] | codes[i * step + apart] << 4);
    }
}

void write_key(const Heads& heads, const Pages& pages, const float* k, int64_t head, int32_t block, int64_t offset) {
    const int64_t dim = heads.head_dim, size = heads.block_size;
    switch (heads.key_type) {
        case PAGE_F32: return write(k, dim, pages.of<float>(pages.keys, block, head, size * dim) + offset, size, nullptr);
        case PAGE_F16:
            return write(k, dim, pages.of<uint16_t>(pages.keys, block, head, size * dim) + offset, size, nullptr);
        case PAGE_I8:
            return write(k, dim, pages.of<int8_t>(pages.keys, block, head, size * dim) + offset, size,
                         pages.of<float>(pages.key_scales, block, head, size) + offset);
        case PAGE_I4:
            return write_int4(k, dim, pages.of<uint8_t>(pages.keys, block, head, size * (dim / 2)) + offset, size, true,
                              pages.of<uint16_t>(pages.key_scales, block, head, size * kv_groups(dim)) + offset, size);
    }
}

void write_value(const Heads& heads, const Pages& pages, const float* v, int64_t head, int32_t block, int64_t offset) {
    const int64_t dim = heads.head_dim, size = heads.block_size, groups = kv_groups(dim);
    switch (heads.value_type) {
        case PAGE_F32:
            return write(v, dim, pages.of<float>(pages.values, block, head, size * dim) + offset * dim, 1, nullptr);
        case PAGE_F16:
            return write(v, dim, pages.of<uint16_t>(pages.values, block, head, size * dim) + offset * dim, 1, nullptr);
        case PAGE_I8:
            return write(v, dim, pages.of<int8_t>(pages.values, block, head, size * dim) + offset * dim, 1,
                         pages.of<float>(pages.value_scales, block, head, size) + offset);
        case PAGE_I4:
            return write_int4(v, dim, pages.of<uint8_t>(pages.values, block, head, size * (dim / 2)) + offset * (dim / 2), 1,
                              false, pages.of<uint16_t>(pages.value_scales, block, head, size * groups) + offset * groups, 1);
    }
}

void rotate_store(const Heads& heads, const Rotation& rotation, const Pages& pages, float* qkv, int64_t stride,
                  int64_t count, const int32_t* positions, const int32_t* const* tables) {
    const int64_t dim = heads.head_dim, half = rotation.dim / 2;
    for (int64_t token = 0; token < count; ++token, qkv += stride) {
        const float* cos = rotation.table + positions[token] * rotation.dim;
        for (int64_t head = 0; head < heads.heads + heads.kv_heads; ++head) {
            float* x = qkv + head * dim;
            if (rotation.q_norm != nullptr)
                normalise(x, head < heads.heads ? rotation.q_norm : rotation.k_norm, dim, rotation.eps);
            rotate(x, cos, cos + half, half);
            if (heads.key_type == PAGE_I4) hadamard(x, dim);
        }
        const int32_t block = tables[token][positions[token] / heads.block_size];
        const int64_t offset = positions[token] % heads.block_size;
        float* k = qkv + heads.heads * dim;
        float* v = k + heads.kv_heads * dim;
        for (int64_t head = 0; head < heads.kv_heads; ++head) {
            if (heads.value_type == PAGE_I4) hadamard(v + head * dim, dim);
            write_key(heads, pages, k + head * dim, head, block, offset);
            write_value(heads, pages, v + head * dim, head, block, offset);
        }
    }
}

}  // namespace

void fill_rotation(AttentionKernels& kernels) { kernels.rotate_store = rotate_store; }

}  // namespace penstock::PENSTOCK_ISA
