// Selects the kernels of the best instruction set that this machine has, or of a named one.
#if defined(PENSTOCK_X86)
#include <cpuid.h>
#elif defined(PENSTOCK_ARM) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(PENSTOCK_ARM) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include <atomic>
#include <cstring>

#include "kernels.h"
#include "penstock.h"

namespace penstock {

namespace portable {
const Kernels& table();
}
#if defined(PENSTOCK_X86)
namespace avx2 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}
namespace avx512vnni {
const Kernels& table();
}
#elif defined(PENSTOCK_ARM)
namespace neon {
const Kernels& table();
}
namespace dotprod {
const Kernels& table();
}
#endif

namespace {

#if defined(PENSTOCK_X86)
// Whether the processor has it, and the system saves its registers. (The compilers' own test for this does not link
// into a shared library everywhere.)
struct Machine {
    bool avx2 = false, avx512 = false, avx512vnni = false;

    Machine() {
        unsigned a, b, c, d, leaf1_c, low, high;
        if (!__get_cpuid(1, &a, &b, &leaf1_c, &d) || !(leaf1_c & bit_OSXSAVE)) return;
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        avx2 = (low & 0x06) == 0x06 && (leaf1_c & bit_FMA) && (leaf1_c & bit_F16C) && (b & bit_AVX2) && (b & bit_BMI2);
        avx512 = avx2 && (low & 0xe6) == 0xe6 && (b & bit_AVX512F) && (b & bit_AVX512BW) && (b & bit_AVX512DQ) &&
                 (b & bit_AVX512VL);
        avx512vnni = avx512 && (c & bit_AVX512VNNI);
    }
};
#elif defined(PENSTOCK_ARM)
bool has_dotprod() {
#if defined(__APPLE__)
    int found = 0;
    size_t size = sizeof found;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &size, nullptr, 0) == 0 && found != 0;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
    return false;
#endif
}
#endif

struct Choice {
    const Kernels& (*table)();
    bool available;
};

// Best last.
const Choice* choices(int& count) {
#if defined(PENSTOCK_X86)
    static const Machine machine;
    static const Choice all[] = {{portable::table, true},
                                 {avx2::table, machine.avx2},
                                 {avx512::table, machine.avx512},
                                 {avx512vnni::table, machine.avx512vnni}};
#elif defined(PENSTOCK_ARM)
    static const Choice all[] = {{portable::table, true}, {neon::table, true}, {dotprod::table, has_dotprod()}};
#else
    static const Choice all[] = {{portable::table, true}};
#endif
    count = sizeof all / sizeof *all;
    return all;
}

const Kernels* find(const char* name) {
    int count = 0;
    const Choice* all = choices(count);
    for (int index = count - 1; index >= 0; --index) {
        if (!all[index].available) continue;
        const Kernels& table = all[index].table();
        if (name == nullptr || std::strcmp(table.name, name) == 0) return &table;
    }
    return nullptr;
}

std::atomic<const Kernels*> in_use{nullptr};

}  // namespace

const Kernels& kernels() {
    const Kernels* table = in_use.load(std::memory_order_acquire);
    if (table == nullptr) {
        table = find(nullptr);
        in_use.store(table, std::memory_order_release);
    }
    return *table;
}

}  // namespace penstock

extern "C" {

const char* penstock_isa(void) { return penstock::kernels().name; }

int penstock_select(const char* isa) {
    const penstock::Kernels* table = penstock::find(isa);
    if (table == nullptr) return 0;
    penstock::in_use.store(table, std::memory_order_release);
    return 1;
}

const void* penstock_kernels(void) { return &penstock::kernels(); }

void penstock_quantize(const float* x, int64_t tokens, int64_t cols, void* out) {
    penstock::kernels().linear.quantize(x, tokens, cols, static_cast<penstock::Quantized*>(out), penstock::num_blocks(cols));
}

void penstock_linear(const void* matrix, const float* x, const void* quantized, int64_t tokens, const float* bias,
                     float* out, int64_t out_stride, int accumulate, int64_t part, int64_t parts) {
    const penstock::Matrix& weights = *static_cast<const penstock::Matrix*>(matrix);
    const int64_t panels = penstock::num_panels(weights);
    penstock::kernels().linear.linear(weights, x, static_cast<const penstock::Quantized*>(quantized), tokens, bias, out,
                                      out_stride, accumulate != 0, panels * part / parts, panels * (part + 1) / parts);
}

void penstock_gather(const void* matrix, const int64_t* tokens, int64_t count, float scale, float* out) {
    penstock::kernels().linear.gather(*static_cast<const penstock::Matrix*>(matrix), tokens, count, scale, out);
}

uint32_t penstock_headers(void) { return PENSTOCK_HEADERS; }

const char* penstock_draw_params(void) { return penstock::DRAW_PARAMS_SIGNATURE; }

int32_t penstock_draw(float* logits, int64_t vocab, const void* params, const void* tables, const void* logprobs,
                      int64_t row, float* scratch) {
    return penstock::kernels().draw.draw(logits, vocab, *static_cast<const penstock::DrawParams*>(params),
                                         *static_cast<const penstock::SlotTables*>(tables),
                                         static_cast<const penstock::LogprobTable*>(logprobs), row, scratch);
}

void penstock_filter(const float* logits, int64_t vocab, const void* params, const void* tables, float* scores,
                     float* scratch) {
    penstock::kernels().draw.filter(logits, vocab, *static_cast<const penstock::DrawParams*>(params),
                                    *static_cast<const penstock::SlotTables*>(tables), scores, scratch);
}
}
