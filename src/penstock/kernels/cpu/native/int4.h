// The sixteen numbers that an int4 code of the KV pages stands for, in units of its scale: Lloyd and Max's levels for
// normally distributed numbers, which keys and values nearly are after a Hadamard transform. They lose a fifth less than
// sixteen levels at equal distances (squared error, keys and values of SmolLM2).
#pragma once

#include <cstdint>

namespace penstock {

constexpr int8_t INT4_LEVELS[16] = {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127};
// Scales are stored times 128, about the largest number of their group: so float16 holds them as well as the numbers.
constexpr float INT4_UNIT = 1.0f / 128.0f;

}  // namespace penstock
