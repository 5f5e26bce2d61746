"""From the tensors of a checkpoint to the weights of a model: read, place, form.

loader                     the three stages, several parameters at a time
read                       first: tensors by the names of a checkpoint, which must fit the map
source                     what is read from: safetensors, gguf (with dequantize), dummy, dummy_tensors
quantized_hf               a source too: AWQ, GPTQ and others (quantized_layers, grouped_codes, small_floats)
place                      second: slice for a rank, permute, fuse
form                       third: packed for the native kernels (pack has GGUF's types)
dense_form                 third, with torch: tensors
coded_form                 third, with CUDA: codes as a checkpoint has them (codes, unpack_codes), or rounded (rounding)
blank                      layers without numbers that stand for those of a checkpoint
map, names                 which tensors make up which parameter, as data
loaded                     the result: weights by name
"""
