"""The native CPU engine: packed weights, and C++ kernels (native/) behind a C interface.

arena, packed      memory in huge pages; matrices in the layout that native products read
record             a model's wiring -> a flat list of operations
program            runs that list, one call per step; the structs that both sides read
draw               draws tokens outside a program: for the sampling lab, and for tests
prefault           populates the memory of the KV cache before it is used
library            finds and loads the compiled library
"""
