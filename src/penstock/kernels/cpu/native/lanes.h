// Vectors of sixteen floats: one AVX-512 register, two of AVX2, four of NEON, or a compiler's vector of 64 bytes. Sums over
// the lanes run in one order everywhere, so all instruction sets that have a fused multiply-add give the same results to
// the last bit; `portable` on x86 has none, and rounds products.
#pragma once

#if defined(__AVX512F__)
#include "lanes_avx512.h"
#elif defined(__AVX2__)
#include "lanes_avx2.h"
#elif defined(PENSTOCK_NEON)
#include "lanes_neon.h"
#else
#include "lanes_portable.h"
#endif

namespace penstock::PENSTOCK_ISA {
namespace {

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
