// Packing of weights when they are loaded: rows into panels (linear.h), and floats into codes.
#include <cstdint>
#include <cstring>

#include "linear.h"
#include "low_rank.h"
#include "penstock.h"

namespace penstock {
namespace {

template <class Unit>
void to_panels(const char* in, int64_t rows, int64_t row_bytes, int64_t groups, int64_t group_bytes, int64_t units,
               Unit flip, Unit* out) {
    for (int64_t first = 0; first < rows; first += PANEL, in += PANEL * row_bytes) {
        const int64_t count = rows - first < PANEL ? rows - first : PANEL;
        for (int64_t group = 0; group < groups; ++group) {
            for (int64_t unit = 0; unit < units; ++unit, out += PANEL) {
                const char* at = in + group * group_bytes + unit * static_cast<int64_t>(sizeof(Unit));
                if (count == PANEL) {
#pragma GCC unroll 16
                    for (int64_t row = 0; row < PANEL; ++row) {
                        Unit value;
                        std::memcpy(&value, at + row * row_bytes, sizeof(Unit));
                        out[row] = value ^ flip;
                    }
                    continue;
                }
                for (int64_t row = 0; row < count; ++row, at += row_bytes) {
                    std::memcpy(out + row, at, sizeof(Unit));
                    out[row] ^= flip;
                }
                for (int64_t row = count; row < PANEL; ++row) out[row] = 0;
            }
        }
    }
}

// To the nearest float16, ties to even; beyond the largest, infinity.
uint16_t to_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits >= 0x47800000) return static_cast<uint16_t>(sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (bits < 0x38800000) {  // subnormal: the sum has its last bit at 2^-24
        float small;
        std::memcpy(&small, &bits, 4);
        small += 0.5f;
        std::memcpy(&bits, &small, 4);
        return static_cast<uint16_t>(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + (bits >> 13 & 1);
    return static_cast<uint16_t>(sign | (bits - 0x38000000) >> 13);
}

float from_half(uint16_t half) {
    const uint32_t magnitude = half & 0x7fff;
    float value;
    if (magnitude < 0x400) {
        value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24
    } else {
        const uint32_t bits = (magnitude << 13) + (magnitude < 0x7c00 ? 0x38000000 : 0x70000000);
        std::memcpy(&value, &bits, 4);
    }
    return half & 0x8000 ? -value : value;
}

// To the nearest integer, ties to even, of numbers below 2^22.
inline float rounded(float x) { return x + 12582912.0f - 12582912.0f; }
inline float clamped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// Of 32 numbers, in the order that halves them: loops that compilers turn into vector instructions.
template <class Combine>
inline float reduce(const float* values, Combine combine) {
    float halves[16];
    for (int i = 0; i < 16; ++i) halves[i] = combine(values[i], values[16 + i]);
    for (int i = 0; i < 8; ++i) halves[i] = combine(halves[i], halves[8 + i]);
    for (int i = 0; i < 4; ++i) halves[i] = combine(halves[i], halves[4 + i]);
    return combine(combine(halves[0], halves[2]), combine(halves[1], halves[3]));
}

inline float sum(const float* terms) {
    return reduce(terms, [](float a, float b) { return a + b; });
}

inline float largest(const float* values) {
    return reduce(values, [](float a, float b) { return a > b ? a : b; });
}

uint16_t quantize_to_int8(const float* x, uint8_t* codes) {
    float sizes[BLOCK];
    int32_t whole[BLOCK];
    for (int i = 0; i < BLOCK; ++i) sizes[i] = __builtin_fabsf(x[i]);
    const uint16_t scale = to_half(largest(sizes) / 127.0f);
    const float divisor = scale == 0 ? 1.0f : from_half(scale);
    for (int i = 0; i < BLOCK; ++i) {
        whole[i] = static_cast<int32_t>(rounded(clamped(x[i] / divisor, -127.0f, 127.0f))) + 128;
    }
    for (int i = 0; i < BLOCK; ++i) codes[i] = static_cast<uint8_t>(whole[i]);
    return scale;
}

// Codes are -8 to 7: the largest weight of either sign gets code -8. A smaller scale, which clips it, may fit the others
// better: of a few, take the codes with the least squared error, and then the scale that fits them best.
uint16_t quantize_to_int4(const float* x, uint8_t* codes) {
    const float shares[] = {1.0f, 0.9375f, 0.875f, 0.8125f};  // of the scale that just reaches the largest weight
    float best[BLOCK] = {}, tried[BLOCK], terms[BLOCK], least = __builtin_inff();
    for (int i = 0; i < BLOCK; ++i) terms[i] = -x[i];
    const float highest = largest(x), minus_lowest = largest(terms);
    const float extreme = (highest > minus_lowest ? highest : -minus_lowest) / -8.0f;
    for (const float share : shares) {
        const float scale = extreme * share, divisor = scale == 0.0f ? 1.0f : scale;
        for (int i = 0; i < BLOCK; ++i) {
            tried[i] = rounded(clamped(x[i] / divisor, -8.0f, 7.0f));
            const float error = tried[i] * scale - x[i];
            terms[i] = error * error;
        }
        const float error = sum(terms);
        if (error < least) {
            least = error;
            std::memcpy(best, tried, sizeof best);
        }
    }
    for (int i = 0; i < BLOCK; ++i) terms[i] = x[i] * best[i];
    const float product = sum(terms);
    for (int i = 0; i < BLOCK; ++i) terms[i] = best[i] * best[i];
    const float squares = sum(terms);
    for (int i = 0; i < 16; ++i) {
        const int32_t low = static_cast<int32_t>(best[i]) + 8, high = static_cast<int32_t>(best[16 + i]) + 8;
        codes[i] = static_cast<uint8_t>(low | high << 4);
    }
    return to_half(product / (squares < 1.0f ? 1.0f : squares));
}

inline float number(float stored) { return stored; }

inline float number(uint16_t half) {  // without a branch; the exponent is moved by a product
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13, sign = static_cast<uint32_t>(half & 0x8000) << 16;
    float value;
    std::memcpy(&value, &magnitude, 4);
    value *= 0x1p112f;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits |= sign;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline float largest_size(const float* in, int64_t count) {
    float most = 0.0f;
    for (int64_t at = 0; at < count; ++at) most = __builtin_fabsf(in[at]) > most ? __builtin_fabsf(in[at]) : most;
    return most;
}

inline float largest_size(const uint16_t* in, int64_t count) {  // sizes of halves are ordered as integers
    int16_t most = 0;
    for (int64_t at = 0; at < count; ++at) {
        const int16_t size = static_cast<int16_t>(in[at] & 0x7fff);
        most = size > most ? size : most;
    }
    return from_half(static_cast<uint16_t>(most));
}

// Matrices of smaller numbers are zeros.
constexpr float LEAST_SIZE = 1e-25f;
constexpr int64_t PIECE = 16;  // columns at a time

template <class Stored>
inline void to_codes(const Stored* in, float inverse, int8_t* out) {
    int32_t codes[PIECE];
    for (int64_t at = 0; at < PIECE; ++at)
        codes[at] = static_cast<int32_t>(rounded(clamped(number(in[at]) * inverse, -127.0f, 127.0f)));
    for (int64_t at = 0; at < PIECE; ++at) out[at] = static_cast<int8_t>(codes[at]);
}

template <class Stored>
float pack_codes(const Stored* in, int64_t rows, int64_t cols, char* out) {
    const float most = largest_size(in, rows * cols), factor = most < LEAST_SIZE ? 0.0f : most / 127.0f;
    std::memset(out, 0, static_cast<size_t>(num_panels(rows) * panel_bytes(CODES, cols)));
    for (int64_t first = 0; first < rows && factor > 0.0f; first += PANEL, out += panel_bytes(CODES, cols)) {
        const int64_t count = rows - first < PANEL ? rows - first : PANEL;
        uint16_t scales[PANEL] = {};
        float inverses[PANEL] = {};
        for (int64_t row = 0; row < count; ++row) {
            scales[row] = to_half(largest_size(in + (first + row) * cols, cols) / most);
            inverses[row] = scales[row] == 0 ? 0.0f : 1.0f / (from_half(scales[row]) * factor);
        }
        int8_t piece[PANEL][PIECE] = {};
        for (int64_t col = 0; col < cols; col += PIECE) {
            const int64_t some = cols - col < PIECE ? cols - col : PIECE;
            for (int64_t row = 0; row < count; ++row) {
                const Stored* from = in + (first + row) * cols + col;
                Stored padded[PIECE] = {};
                if (some < PIECE) {
                    std::memcpy(padded, from, static_cast<size_t>(some) * sizeof(Stored));
                    from = padded;
                }
                to_codes(from, inverses[row], piece[row]);
            }
            int8_t* to = reinterpret_cast<int8_t*>(out) + col * PANEL;
            for (int64_t at = 0; at < some; ++at, to += PANEL)
                for (int64_t row = 0; row < PANEL; ++row) to[row] = piece[row][at];
        }
        std::memcpy(out + cols * PANEL, scales, sizeof scales);
    }
    return factor;
}

}  // namespace
}  // namespace penstock

extern "C" {

void penstock_to_panels(const void* in, int64_t rows, int64_t row_bytes, int64_t groups, int64_t group_bytes,
                        int64_t units, int unit_bytes, uint32_t flip, void* out) {
    const char* bytes = static_cast<const char*>(in);
    if (unit_bytes == 2) {
        penstock::to_panels(bytes, rows, row_bytes, groups, group_bytes, units, static_cast<uint16_t>(flip),
                            static_cast<uint16_t*>(out));
    } else {
        penstock::to_panels(bytes, rows, row_bytes, groups, group_bytes, units, flip, static_cast<uint32_t*>(out));
    }
}

void penstock_quantize_weights(const float* blocks, int64_t count, int bits, uint8_t* codes, uint16_t* scales) {
    for (int64_t block = 0; block < count; ++block, blocks += penstock::BLOCK) {
        scales[block] = bits == 8 ? penstock::quantize_to_int8(blocks, codes + 32 * block)
                                  : penstock::quantize_to_int4(blocks, codes + 16 * block);
    }
}

float penstock_pack_codes(const void* in, int64_t rows, int64_t cols, int halves, void* out) {
    char* to = static_cast<char*>(out);
    return halves ? penstock::pack_codes(static_cast<const uint16_t*>(in), rows, cols, to)
                  : penstock::pack_codes(static_cast<const float*>(in), rows, cols, to);
}
}
