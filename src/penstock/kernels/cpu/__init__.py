"""The native CPU engine: packed weights, and C++ kernels (native/) behind a plain C interface.

arena, packed      memory in huge pages; matrices in the layout that native products read
record             a model's wiring -> a flat list of operations
program            runs that list, one call per step; the structs that both sides read
draw               tokens from logits that torch has worked on
library            finds and loads what was built
"""
