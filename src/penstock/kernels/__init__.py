"""The operations a model is wired from, and what stands behind them on each kind of device.

interface.py       Operations, and the structs they read: Batch, Pages, Rotary, Norm
torch_ops.py       Operations in plain torch: the references, one per file (attention.py, rotate_store.py, …)
cuda_ops.py        Operations on a GPU: Triton kernels (cuda/, one per file) and cuBLAS
cpu/record.py      Operations that compute nothing: they leave a list, which cpu/program.py has native code run
"""
