"""Makes quantized checkpoints: `penstock quantize`. A Hugging Face folder becomes another one, in a format that
Penstock and others read. Needs torch.

formats      --to → how its matrices are quantized and stored
round_codes  round to nearest
gptq         spread each column's rounding error over those that follow, by the Hessian of the layer's inputs
awq          scale input channels before rounding, by how large the inputs are
calibrate    what the inputs of each product look like on a text
folder       read, quantize, write

Nothing else in the package imports it but the command.
"""
