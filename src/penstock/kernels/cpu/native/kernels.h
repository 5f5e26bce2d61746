// All kernels of one instruction set. Kernel files are compiled once per instruction set, each time in the namespace
// PENSTOCK_ISA and with that set's flags, and fill their part of the table.
//
// Kernel files use no templates or inline functions of the standard library: the linker keeps one copy of each, and it
// might be one with instructions that this machine lacks. Helpers of their own go into an unnamed namespace.
#pragma once

#include "attention.h"
#include "draw.h"
#include "linear.h"
#include "low_rank.h"
#include "rows.h"

namespace penstock {

struct Kernels {
    const char* name;
    LinearKernels linear;
    AttentionKernels attention;
    RowKernels rows;
    DrawKernels draw;
    LowRankKernels low_rank;
};

// The table in use: by default the best the machine has.
const Kernels& kernels();

}  // namespace penstock

#ifdef PENSTOCK_ISA
namespace penstock::PENSTOCK_ISA {
const Kernels& table();

void fill(LinearKernels&);
void fill(AttentionKernels&);
void fill_rotation(AttentionKernels&);
void fill(RowKernels&);
void fill(DrawKernels&);
void fill(LowRankKernels&);
}  // namespace penstock::PENSTOCK_ISA
#endif
