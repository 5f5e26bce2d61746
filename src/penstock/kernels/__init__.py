"""The operations a model is wired from, and their implementations on each kind of device.

arrays             numpy arrays, and bfloat16 in them
interface          Operations, and the structs they read: Batch, Pages, Rotary, Norm, Linear
weight             a weight matrix and the form it is stored in
torch_ops          Operations in plain torch, from the references in reference/
cuda_ops           Operations on a GPU: Triton kernels (cuda/, one per file) and cuBLAS
cpu/record         Operations that compute nothing: they record a list, which cpu/program runs in native code
"""
