#include "kernels.h"

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

#ifdef PENSTOCK_BASE  // an instruction set whose kernels this one shares, but for those of linear.cpp
namespace penstock::PENSTOCK_BASE {
const Kernels& table();
}
#endif

namespace penstock::PENSTOCK_ISA {

const Kernels& table() {
    static const Kernels filled = [] {
#ifdef PENSTOCK_BASE
        Kernels kernels = PENSTOCK_BASE::table();
#else
        Kernels kernels{};
        fill(kernels.attention);
        fill(kernels.rows);
        fill(kernels.draw);
        fill(kernels.low_rank);
#endif
        kernels.name = TEXT(PENSTOCK_ISA);
        fill(kernels.linear);
        return kernels;
    }();
    return filled;
}

}  // namespace penstock::PENSTOCK_ISA
