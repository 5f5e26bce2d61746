"""Building blocks that architectures wire their layers from: attention over the KV cache, rotary embedding, the decoder
around the layers, and the builder that makes blocks of weights and spec."""
