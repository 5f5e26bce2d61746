// Head norms and rotary embedding (RoPE) of q and k, and the write of k and v to the pages.
#include "attention.h"
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

template <class E>
void write_token(const Heads& heads, const Pages& pages, const float* k, const float* v, int32_t block, int64_t offset) {
    const int64_t dim = heads.head_dim, size = heads.block_size;
    for (int64_t head = 0; head < heads.kv_heads; ++head) {
        float *key_scale = nullptr, *value_scale = nullptr;
        if (pages.key_scales != nullptr) {
            key_scale = pages.of<float>(pages.key_scales, block, head, size) + offset;
            value_scale = pages.of<float>(pages.value_scales, block, head, size) + offset;
        }
        write(k + head * dim, dim, pages.of<E>(pages.keys, block, head, size * dim) + offset, size, key_scale);
        write(v + head * dim, dim, pages.of<E>(pages.values, block, head, size * dim) + offset * dim, 1, value_scale);
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
        }
        const int32_t block = tables[token][positions[token] / heads.block_size];
        const int64_t offset = positions[token] % heads.block_size;
        const float* k = qkv + heads.heads * dim;
        const float* v = k + heads.kv_heads * dim;
        switch (heads.type) {
            case PAGE_F32: write_token<float>(heads, pages, k, v, block, offset); break;
            case PAGE_F16: write_token<uint16_t>(heads, pages, k, v, block, offset); break;
            case PAGE_I8: write_token<int8_t>(heads, pages, k, v, block, offset); break;
        }
    }
}

}  // namespace

void fill_rotation(AttentionKernels& kernels) { kernels.rotate_store = rotate_store; }

}  // namespace penstock::PENSTOCK_ISA
