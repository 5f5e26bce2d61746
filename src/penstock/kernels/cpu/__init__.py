"""The native CPU engine: packed weights, and C++ kernels behind a plain C interface."""
