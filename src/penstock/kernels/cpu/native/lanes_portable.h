// Lanes as a vector of the compiler.
#pragma once

#include <cstdint>
#include <cstring>

#include "int4.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr int LANES = 16;

inline float bits_to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

typedef float Vector __attribute__((vector_size(64)));
typedef int32_t Whole __attribute__((vector_size(64)));

struct Lanes {
    Vector v;
};

inline Lanes broadcast(float value) { return {value - Vector{}}; }
inline Lanes load(const float* from) {
    Lanes x;
    std::memcpy(&x, from, sizeof x);
    return x;
}
inline Lanes load_first(const float* from, int count) {
    Lanes x{};
    for (int lane = 0; lane < LANES && lane < count; ++lane) x.v[lane] = from[lane];
    return x;
}
inline void store(float* to, Lanes x) { std::memcpy(to, &x, sizeof x); }
inline void store_first(float* to, Lanes x, int count) {
    for (int lane = 0; lane < LANES && lane < count; ++lane) to[lane] = x.v[lane];
}
inline Lanes operator+(Lanes a, Lanes b) { return {a.v + b.v}; }
inline Lanes operator-(Lanes a, Lanes b) { return {a.v - b.v}; }
inline Lanes operator*(Lanes a, Lanes b) { return {a.v * b.v}; }
inline Lanes operator/(Lanes a, Lanes b) { return {a.v / b.v}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
#ifdef __FP_FAST_FMAF  // the machine has a fused multiply-add
    for (int lane = 0; lane < LANES; ++lane) c.v[lane] = __builtin_fmaf(a.v[lane], b.v[lane], c.v[lane]);
    return c;
#else
    return {a.v * b.v + c.v};
#endif
}
inline Lanes max(Lanes a, Lanes b) { return {a.v > b.v ? a.v : b.v}; }
inline Lanes min(Lanes a, Lanes b) { return {a.v < b.v ? a.v : b.v}; }
inline Lanes abs(Lanes a) { return {reinterpret_cast<Vector>(reinterpret_cast<Whole>(a.v) & 0x7FFFFFFF)}; }
inline Lanes round(Lanes a) {  // to even, |a| < 2^22
    const Vector magic = Vector{} + 12582912.0f;
    return {(a.v + magic) - magic};
}
inline Lanes keep(Lanes x, int from, int to, float other) {
    for (int lane = 0; lane < LANES; ++lane)
        if (lane < from || lane >= to) x.v[lane] = other;
    return x;
}
inline Lanes where_less(Lanes a, Lanes b, Lanes x, Lanes y) { return {a.v < b.v ? x.v : y.v}; }
inline Lanes scale_by_power(Lanes x, Lanes n) {
    Whole biased = __builtin_convertvector(n.v, Whole) + 127;
    return {x.v * reinterpret_cast<Vector>(biased << 23)};
}
inline float half_to_float(uint16_t half) {
    // The exponent is moved by a product, which makes subnormal halves right as well.
    uint32_t magnitude = static_cast<uint32_t>(half & 0x7FFF) << 13;
    float value = bits_to_float(magnitude) * bits_to_float(0x77800000);  // 2^112
    if (magnitude >= 0x0F800000) value = bits_to_float(magnitude | 0x7F800000);  // inf, NaN
    return bits_to_float(float_to_bits(value) | static_cast<uint32_t>(half & 0x8000) << 16);
}
inline uint16_t float_to_half(float value) {  // nearest, ties to even
    uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | (magnitude > 0x7F800000 ? 0x7E00 : 0x7C00));
    if (magnitude < 0x38800000) {  // subnormal: let an addition round
        float shifted = bits_to_float(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (float_to_bits(shifted) - 0x3F000000));
    }
    magnitude += 0xC8000FFF + (magnitude >> 13 & 1);
    return static_cast<uint16_t>(sign | magnitude >> 13);
}
inline Lanes load_half(const uint16_t* from) {
    Lanes x;
    for (int lane = 0; lane < LANES; ++lane) x.v[lane] = half_to_float(from[lane]);
    return x;
}
inline void store_half(uint16_t* to, Lanes x) {
    for (int lane = 0; lane < LANES; ++lane) to[lane] = float_to_half(x.v[lane]);
}
inline Lanes load_bytes(const int8_t* from) {
    Lanes x;
    for (int lane = 0; lane < LANES; ++lane) x.v[lane] = from[lane];
    return x;
}
inline void store_bytes(int8_t* to, Lanes x) {
    for (int lane = 0; lane < LANES; ++lane) to[lane] = static_cast<int8_t>(x.v[lane]);
}
inline void load_nibbles(const uint8_t* from, Lanes& low, Lanes& high) {
    for (int lane = 0; lane < LANES; ++lane) {
        low.v[lane] = INT4_LEVELS[from[lane] & 15];
        high.v[lane] = INT4_LEVELS[from[lane] >> 4];
    }
}
template <int H>
inline Lanes swap_lanes(Lanes x) {
    Lanes swapped;
    for (int lane = 0; lane < LANES; ++lane) swapped.v[lane] = x.v[lane ^ H];
    return swapped;
}
inline float sum(Lanes x) {
    float values[LANES];
    store(values, x);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) values[lane] += values[lane + half];
    return values[0];
}
inline float largest(Lanes x) {
    float values[LANES];
    store(values, x);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane)
            if (values[lane + half] > values[lane]) values[lane] = values[lane + half];
    return values[0];
}

}  // namespace
}  // namespace penstock::PENSTOCK_ISA
