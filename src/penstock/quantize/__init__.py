"""Makes quantized checkpoints: `penstock quantize`. A Hugging Face folder becomes another one, in a format that
Penstock and others read, or a GGUF file. Needs torch, except for GGUF.

formats      --to → how its matrices are quantized and stored
round_codes  round to nearest
gptq         spread each column's rounding error over those that follow, by the Hessian of the layer's inputs
awq          scale input channels before rounding, by how large the inputs are
calibrate    what the inputs of each product look like on a text
folder       read, quantize, write
round_rows   8 bits with a scale for each row
gguf_model   GGUF files instead of folders: gguf_blocks, gguf_tokenizer, gguf_file

Only the command imports this package.
"""
