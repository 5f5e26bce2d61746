// The C interface: plain structs and raw pointers, nothing is thrown across it. Called from Python through ctypes.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PENSTOCK_API __attribute__((visibility("default")))

// Name of the instruction set in use: portable; avx2, avx512 or avx512vnni on x86; neon or dotprod on ARM.
PENSTOCK_API const char* penstock_isa(void);
// Use another one, null: the best; 0 if it is not built in or this machine lacks it. Not while kernels run.
PENSTOCK_API int penstock_select(const char* isa);
// Its kernels, a penstock::Kernels: tests call them one by one.
PENSTOCK_API const void* penstock_kernels(void);

// The kernels of linear.h, in the calling thread. `matrix` is a penstock::Matrix, `quantized` penstock::Quantized. A product
// is computed for the `part`th of `parts` about equal shares of the panels.
PENSTOCK_API void penstock_quantize(const float* x, int64_t tokens, int64_t cols, void* out);
PENSTOCK_API void penstock_linear(const void* matrix, const float* x, const void* quantized, int64_t tokens,
                                  const float* bias, float* out, int64_t out_stride, int accumulate, int64_t part,
                                  int64_t parts);
PENSTOCK_API void penstock_gather(const void* matrix, const int64_t* tokens, int64_t count, float scale, float* out);

// Rows of weights into panels: `in` has rows of `groups`, so many bytes apart, of `units` of 2 or 4 bytes each, which come
// out as [panels][groups][units][16 rows], with the bits of `flip` inverted; missing rows of the last panel are 0.
PENSTOCK_API void penstock_to_panels(const void* in, int64_t rows, int64_t row_bytes, int64_t groups, int64_t group_bytes,
                                     int64_t units, int unit_bytes, uint32_t flip, void* out);
// Blocks of 32 floats to codes of 8 bits, 32 bytes a block, or 4 bits, 16 bytes a block, and a float16 scale.
PENSTOCK_API void penstock_quantize_weights(const float* blocks, int64_t count, int bits, uint8_t* codes, uint16_t* scales);
// Rows of float16 (`halves`) or float32 to panels of CODES, see low_rank.h. Gives the factor of their scales.
PENSTOCK_API float penstock_pack_codes(const void* in, int64_t rows, int64_t cols, int halves, void* out);

// A digest of the headers that the library was compiled with: Python checks that it describes the same structs.
PENSTOCK_API uint32_t penstock_headers(void);
// The fields of penstock::DrawParams with types, offsets and size: Python checks that they are its own.
PENSTOCK_API const char* penstock_draw_params(void);
// The kernels of draw.h, of one row in the calling thread. `params` is a penstock::DrawParams, `tables` penstock::SlotTables,
// `logprobs` null or a penstock::LogprobTable with a `row`; `scratch` has draw_scratch(vocab) floats.
PENSTOCK_API int32_t penstock_draw(float* logits, int64_t vocab, const void* params, const void* tables,
                                   const void* logprobs, int64_t row, float* scratch);
PENSTOCK_API void penstock_filter(const float* logits, int64_t vocab, const void* params, const void* tables, float* scores,
                                  float* scratch);

// Threads that run programs; `threads` counts the one that calls.
PENSTOCK_API void* penstock_pool_new(int threads);
PENSTOCK_API void penstock_pool_free(void* pool);
// A recorded model (program.h: `layout` is a penstock::Layout, `ops` penstock::Op, `step` penstock::Step). What ops point
// to must outlive it. A pool runs one program at a time. `beside`: a program whose memory it may use too, or null.
PENSTOCK_API void* penstock_program_new(void* pool, const void* layout, const void* ops, int32_t num_ops,
                                        const void* beside);
PENSTOCK_API void penstock_program_free(void* program);
// 0, or 1: more tokens than there is room for, 2: more wanted ones.
PENSTOCK_API int penstock_program_run(void* program, const void* step);
// Where a buffer lies after the last run; -2: the logits.
PENSTOCK_API float* penstock_program_buffer(void* program, int32_t number);
// Time each operation apart from now on, or no longer: nanoseconds so far by kind.
PENSTOCK_API const int64_t* penstock_program_profile(void* program, int on);

#ifdef __cplusplus
}
#endif
