"""From the tensors of a checkpoint to those of a model.

map                        which tensors make up which parameter: data
source                     the protocol of whatever has tensors: safetensors, gguf (with dequantize), dummy
loader                     fills parameters from a source, and insists that the two fit
pack                       the same into the native kernels' form
"""
