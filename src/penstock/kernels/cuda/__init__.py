"""The operations as Triton kernels, one per file; the plain-torch reference of each has the same name one folder up.

Importing a module of this package imports triton, which only CUDA builds of torch bring along: nothing outside
`kernels.cuda_ops` and code that has a CUDA tensor in hand may do so. Block sizes are fixed, by dtype and shape:
whatever is tried at run time costs a compilation per choice at start. Those here were measured on an H200.
"""
