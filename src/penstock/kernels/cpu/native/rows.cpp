#include "rows.h"

#include "kernels.h"
#include "lanes.h"

namespace penstock::PENSTOCK_ISA {
namespace {

inline int left(int64_t width, int64_t c) { return width - c < LANES ? static_cast<int>(width - c) : LANES; }

constexpr int64_t CHUNK = 16 * BLOCK;  // columns that are quantized at a time

// The columns `from` to `to` of a row, of which `value` gives a few, to `out` and `quantized`; either may be null.
template <class Value>
inline void write(int64_t from, int64_t to, float* out, Quantized* quantized, Value value) {
    alignas(64) float chunk[CHUNK];
    for (int64_t begin = from; begin < to; begin += CHUNK) {
        const int64_t count = to - begin < CHUNK ? to - begin : CHUNK;
        float* target = out == nullptr ? chunk : out + begin;
        for (int64_t c = 0; c < count; c += LANES) {
            const int some = left(count, c);
            store_first(target + c, value(begin + c, some), some);
        }
        if (quantized != nullptr)
            table().linear.quantize(target, 1, count, quantized + begin / BLOCK, num_blocks(count));
    }
}

void norm(float* x, const float* added, const float* weight, float eps, int64_t count, int64_t width, float* out,
          Quantized* quantized) {
    for (int64_t row = 0; row < count; ++row, x += width) {
        Lanes squares[2] = {broadcast(0.0f), broadcast(0.0f)};
        for (int64_t c = 0; c < width; c += LANES) {
            const int some = left(width, c);
            Lanes value = load_first(x + c, some);
            if (added != nullptr) {
                value = value + load_first(added + row * width + c, some);
                store_first(x + c, value, some);
            }
            Lanes& sum = squares[c / LANES % 2];
            sum = fma(value, value, sum);
        }
        const float mean = sum(squares[0] + squares[1]) / static_cast<float>(width);
        const Lanes factor = broadcast(1.0f / __builtin_sqrtf(mean + eps));
        write(0, width, out == nullptr ? nullptr : out + row * width,
              quantized == nullptr ? nullptr : quantized + row * num_blocks(width),
              [&](int64_t c, int some) { return load_first(x + c, some) * factor * load_first(weight + c, some); });
    }
}

inline Lanes active(Lanes x, int32_t activation) {
    if (activation == SILU) return x * sigmoid(x);
    const Lanes inner = broadcast(1.5957691216057308f) * fma(broadcast(0.044715f) * x * x, x, x);  // 2 sqrt(2 / pi)
    return x * sigmoid(inner);
}

// Rows of one block are quantized some at a time.
void gate_blocks(const float* gate_up, int32_t activation, int64_t count, Quantized* quantized, int64_t stride) {
    alignas(64) float chunk[CHUNK];
    for (int64_t first = 0; first < count; first += CHUNK / BLOCK) {
        const int64_t rows = count - first < CHUNK / BLOCK ? count - first : CHUNK / BLOCK;
        const float* x = gate_up + first * 2 * BLOCK;
        for (int64_t at = 0; at < rows * BLOCK; at += LANES) {
            const float* from = x + at / BLOCK * 2 * BLOCK + at % BLOCK;
            store(chunk + at, active(load(from), activation) * load(from + BLOCK));
        }
        table().linear.quantize(chunk, rows, BLOCK, quantized + first * stride, stride);
    }
}

void gate(const float* gate_up, int32_t activation, int64_t count, int64_t width, int64_t from, int64_t to, float* out,
          Quantized* quantized, int64_t stride) {
    if (out == nullptr && width == BLOCK && from == 0 && to == BLOCK) {
        gate_blocks(gate_up, activation, count, quantized, num_blocks(stride));
        return;
    }
    for (int64_t row = 0; row < count; ++row) {
        const float* x = gate_up + row * 2 * width;
        write(from, to, out == nullptr ? nullptr : out + row * stride,
              quantized == nullptr ? nullptr : quantized + row * num_blocks(stride), [&](int64_t c, int some) {
                  return active(load_first(x + c, some), activation) * load_first(x + width + c, some);
              });
    }
}

void cap(float* x, int64_t count, float cap) {
    for (int64_t c = 0; c < count; c += LANES) {
        const int some = left(count, c);
        store_first(x + c, tanh(load_first(x + c, some) / broadcast(cap)) * broadcast(cap), some);
    }
}

int64_t argmax(const float* x, int64_t count) {
    Lanes top = broadcast(-__builtin_inff());
    for (int64_t c = 0; c < count; c += LANES) {
        const int some = left(count, c);
        top = max(keep(load_first(x + c, some), 0, some, -__builtin_inff()), top);
    }
    const float most = largest(top);
    for (int64_t c = 0; c < count; ++c)
        if (x[c] == most) return c;
    return 0;
}

}  // namespace

void fill(RowKernels& kernels) {
    kernels.norm = norm;
    kernels.gate = gate;
    kernels.cap = cap;
    kernels.argmax = argmax;
}

}  // namespace penstock::PENSTOCK_ISA
