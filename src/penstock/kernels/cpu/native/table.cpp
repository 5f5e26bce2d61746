#include "kernels.h"

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

namespace penstock::PENSTOCK_ISA {

const Kernels& table() {
    static const Kernels filled = [] {
        Kernels kernels{};
        kernels.name = TEXT(PENSTOCK_ISA);
        fill(kernels.linear);
        fill(kernels.attention);
        fill(kernels.rows);
        fill(kernels.draw);
        return kernels;
    }();
    return filled;
}

}  // namespace penstock::PENSTOCK_ISA
