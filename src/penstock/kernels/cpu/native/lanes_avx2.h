// Lanes as two AVX2 registers, with FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "int4.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr int LANES = 16;

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
inline Lanes widen(__m128i bytes) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline Lanes load_bytes(const int8_t* from) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
inline void store_bytes(int8_t* to, Lanes x) {
    int32_t whole[LANES];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(whole), _mm256_cvtps_epi32(x.low));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(whole + 8), _mm256_cvtps_epi32(x.high));
    for (int lane = 0; lane < LANES; ++lane) to[lane] = static_cast<int8_t>(whole[lane]);
}
inline void load_nibbles(const uint8_t* from, Lanes& low, Lanes& high) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), fifteen = _mm_set1_epi8(15);
    const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(INT4_LEVELS));
    low = widen(_mm_shuffle_epi8(levels, _mm_and_si128(all, fifteen)));
    high = widen(_mm_shuffle_epi8(levels, _mm_and_si128(_mm_srli_epi16(all, 4), fifteen)));
}
template <int H>
inline Lanes swap_lanes(Lanes x) {
    if constexpr (H == 8) return {x.high, x.low};
    if constexpr (H == 4) return {_mm256_permute2f128_ps(x.low, x.low, 1), _mm256_permute2f128_ps(x.high, x.high, 1)};
    return {_mm256_permute_ps(x.low, H == 1 ? 0xB1 : 0x4E), _mm256_permute_ps(x.high, H == 1 ? 0xB1 : 0x4E)};
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

}  // namespace
}  // namespace penstock::PENSTOCK_ISA
