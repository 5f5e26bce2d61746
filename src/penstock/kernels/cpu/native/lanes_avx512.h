// Lanes as one AVX-512 register (F, BW, DQ, VL).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "int4.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr int LANES = 16;

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
// The levels of the codes in the low halves of sixteen bytes, and of those in the high halves.
inline void load_nibbles(const uint8_t* from, Lanes& low, Lanes& high) {
    const __m512 levels = load_bytes(INT4_LEVELS).v;
    const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    low.v = _mm512_permutexvar_ps(codes, levels);  // reads the four lowest bits
    high.v = _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), levels);
}
// Lanes that are H apart change places: 1, 2, 4 or 8.
template <int H>
inline Lanes swap_lanes(Lanes x) {
    if constexpr (H < 4) return {_mm512_permute_ps(x.v, H == 1 ? 0xB1 : 0x4E)};
    return {_mm512_shuffle_f32x4(x.v, x.v, H == 4 ? 0xB1 : 0x4E)};
}
// Of each pair of halves added: 16 -> 8 -> 4 -> 2 -> 1
inline float sum(Lanes x) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float largest(Lanes x) { return _mm512_reduce_max_ps(x.v); }

}  // namespace
}  // namespace penstock::PENSTOCK_ISA
