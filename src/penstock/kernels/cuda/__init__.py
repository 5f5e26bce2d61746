"""The operations as Triton kernels, one per file. On the right, where their plain-torch references are:

embed, norm, gate, rotate_store              the files of these names one folder up
product                                      linear, norm and gate: a few rows times a matrix, with what surrounds it
cut, decode                                  attention, of rows of one token
short_prefill, prefill, long_prefill         attention, of chunks: up to 64 tokens, any, and long ones through cuDNN
sample: adjust, draw, likeliest, filter      sample.penalties, sample.masks, sample.draw; what they are told is in rules
lay_out                                      forward.inputs: what a decode graph begins with
tiles, launch, ahead                         what kernels share; how they are launched, and compiled ahead

Importing a module of this package imports triton, which only CUDA builds of torch bring along: nothing outside
`kernels.cuda_ops` and code that has a CUDA tensor in hand may do so. Block sizes are fixed, by dtype and shape:
whatever is tried at run time costs a compilation per choice at start. Those here were measured on an H200.
"""
