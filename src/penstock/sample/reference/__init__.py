"""The operations of `penstock.sample` in torch, which define their results: `TorchSampler` samples by them, tests hold
the kernels against them, and `CudaSampler` uses them for log-probabilities, typical_p and inspections."""
