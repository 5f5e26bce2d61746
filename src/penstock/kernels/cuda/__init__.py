"""Triton kernels, one per file, named by what they compute. Each is tested against its plain-torch reference:

embed, norm, gate, rotate_store              kernels.reference, under the same names
skinny_gemm                                  kernels.reference.linear, norm and gate: a few rows, and what is fused
split_kv, decode_attention                   kernels.reference.attention, of rows of one token
prefill_split_kv, _attention, _cudnn         kernels.reference.attention, of chunks: up to 64 tokens, any, long ones
sample: penalties, draw, top_k_top_p,        penstock.sample: penalties, masks, filters, draw; their parameters are in
  filtered_draw                              sampling_params
decode_inputs, chunk_inputs                  forward.inputs: what the graph of a step begins with
attention_tiles, launch, precompile          shared by kernels: flash attention tiles, launching, compiling at start

Importing a module of this package imports triton, which only CUDA builds of torch bring along: only
`kernels.cuda_ops` and code that has a CUDA tensor in hand may do so. Block sizes are fixed by dtype and shape, since
each choice tried at run time would be a compilation at start. They were measured on an H200.
"""
