// Vectors of sixteen floats with the same results on every instruction set: one AVX-512 register, two of AVX2, or a
// compiler's vector of 64 bytes. Sums over the lanes run in one order everywhere.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

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

#if defined(__AVX512F__)

struct Lanes {
    __m512 v;
};

inline __mmask16 first(int count) {
    return static_cast<__mmask16>(count >= LANES ? 0xFFFF : count <= 0 ? 0 : (1 << count) - 1);
}

inline Lanes broadcast(float value) { return {_mm512_set1_ps(value)}; }
inline Lanes load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline Lanes load_first(const float* from, int count) { return {_mm512_maskz_loadu_ps(first(count), from)}; }
inline void store(float* to, Lanes x) { _mm512_storeu_ps(to, x.v); }
inline void store_first(float* to, Lanes x, int count) { _mm512_mask_storeu_ps(to, first(count), x.v); }
inline Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Lanes abs(Lanes a) { return {_mm512_abs_ps(a.v)}; }
inline Lanes round(Lanes a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// Lanes from .. to - 1 of x, `other` elsewhere.
inline Lanes keep(Lanes x, int from, int to, float other) {
    __mmask16 kept = static_cast<__mmask16>(first(to) & ~first(from));
    return {_mm512_mask_blend_ps(kept, _mm512_set1_ps(other), x.v)};
}
// x where a < b, y elsewhere
inline Lanes where_less(Lanes a, Lanes b, Lanes x, Lanes y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
// x * 2^n, n whole, -126 <= n <= 127
inline Lanes scale_by_power(Lanes x, Lanes n) { return {_mm512_scalef_ps(x.v, n.v)}; }
inline Lanes load_half(const uint16_t* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
inline void store_half(uint16_t* to, Lanes x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
inline Lanes load_bytes(const int8_t* from) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))))};
}
inline void store_bytes(int8_t* to, Lanes x) {  // whole numbers, -128 .. 127
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}
// Of each pair of halves added: 16 -> 8 -> 4 -> 2 -> 1
inline float sum(Lanes x) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float largest(Lanes x) { return _mm512_reduce_max_ps(x.v); }

#elif defined(__AVX2__)

struct Lanes {
    __m256 low, high;
};

inline __m256i first(int count) {  // of eight
    const __m256i number = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), number);
}

inline Lanes broadcast(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Lanes load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline Lanes load_first(const float* from, int count) {
    if (count >= LANES) return load(from);
    return {_mm256_maskload_ps(from, first(count)),
            count > 8 ? _mm256_maskload_ps(from + 8, first(count - 8)) : _mm256_setzero_ps()};
}
inline void store(float* to, Lanes x) {
    _mm256_storeu_ps(to, x.low);
    _mm256_storeu_ps(to + 8, x.high);
}
inline void store_first(float* to, Lanes x, int count) {
    _mm256_maskstore_ps(to, first(count), x.low);
    if (count > 8) _mm256_maskstore_ps(to + 8, first(count - 8), x.high);
}
inline Lanes operator+(Lanes a, Lanes b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Lanes min(Lanes a, Lanes b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Lanes abs(Lanes a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline Lanes round(Lanes a) {
    return {_mm256_round_ps(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Lanes keep(Lanes x, int from, int to, float other) {
    const __m256 rest = _mm256_set1_ps(other);
    __m256i low = _mm256_andnot_si256(first(from), first(to));
    __m256i high = _mm256_andnot_si256(first(from - 8), first(to - 8));
    return {_mm256_blendv_ps(rest, x.low, _mm256_castsi256_ps(low)),
            _mm256_blendv_ps(rest, x.high, _mm256_castsi256_ps(high))};
}
inline Lanes where_less(Lanes a, Lanes b, Lanes x, Lanes y) {
    return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
            _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
inline __m256 power(__m256 n) {
    __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline Lanes scale_by_power(Lanes x, Lanes n) {
    return {_mm256_mul_ps(x.low, power(n.low)), _mm256_mul_ps(x.high, power(n.high))};
}
inline Lanes load_half(const uint16_t* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 8)))};
}
inline void store_half(uint16_t* to, Lanes x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT));
}
inline Lanes load_bytes(const int8_t* from) {
    __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)))};
}
inline void store_bytes(int8_t* to, Lanes x) {
    int32_t whole[LANES];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(whole), _mm256_cvtps_epi32(x.low));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(whole + 8), _mm256_cvtps_epi32(x.high));
    for (int lane = 0; lane < LANES; ++lane) to[lane] = static_cast<int8_t>(whole[lane]);
}
inline float sum(Lanes x) {
    __m256 eight = _mm256_add_ps(x.low, x.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float largest(Lanes x) {
    __m256 eight = _mm256_max_ps(x.low, x.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

#else

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
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {a.v * b.v + c.v}; }
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

#endif

// One value, in the arithmetic of the lanes.
inline float one(Lanes x) {
    float values[LANES];
    store(values, x);
    return values[0];
}

// e^x, to about 1 part in 10^7: 1 at 0, and 0 below -87.
inline Lanes exp(Lanes x) {
    const Lanes low = broadcast(-87.0f);
    Lanes inside = min(max(x, low), broadcast(88.0f));
    Lanes n = round(inside * broadcast(1.44269504088896341f));
    Lanes r = fma(n, broadcast(-0.693359375f), inside);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Lanes p = broadcast(1.9875691500e-4f);
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(0.5f));
    p = fma(p * r, r, r) + broadcast(1.0f);
    return where_less(x, low, broadcast(0.0f), scale_by_power(p, n));
}

inline float exp_one(float x) { return one(exp(broadcast(x))); }

inline Lanes sigmoid(Lanes x) { return broadcast(1.0f) / (broadcast(1.0f) + exp(broadcast(0.0f) - x)); }

inline Lanes tanh(Lanes x) {  // odd exactly, and x itself near 0
    Lanes size = abs(x);
    Lanes e = exp(size * broadcast(-2.0f));
    Lanes far = (broadcast(1.0f) - e) / (broadcast(1.0f) + e);
    Lanes square = x * x;
    Lanes near = fma(fma(square, broadcast(2.0f / 15.0f), broadcast(-1.0f / 3.0f)) * square, size, size);
    Lanes value = where_less(size, broadcast(0.08f), near, far);
    return where_less(x, broadcast(0.0f), broadcast(0.0f) - value, value);
}

}  // namespace
}  // namespace penstock::PENSTOCK_ISA
