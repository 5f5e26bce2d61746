"""Draft heads: small networks that draft tokens from the target's hidden states. Readers of the published checkpoint
formats (`eagle`, `medusa`, `mtp`, over `checkpoint`), typed descriptions of what they read (`spec`, `weights`), and the
reference forward passes in numpy (`chain`, `medusa_heads`), which define what a head computes. On the native kernels it
is wired from a model's operations (`chain_network`, `packing`).

    folder ──open_checkpoint──► HeadCheckpoint ──read_eagle──► ChainHeadSpec, ChainHeadWeights ──► ChainHead

A chain head (EAGLE-1, EAGLE-3, MTP) drafts a token at a time: it reads the embedding of the last token and a feature,
which is a hidden state of the target or what it computed for the token before. Medusa heads draft several tokens from
one hidden state. No torch.
"""
