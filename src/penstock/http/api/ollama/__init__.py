"""Ollama's API: schemas and pure translations between it and `flow`, and its routes.

    bytes ──parse──► schemas ──chat, generate, embed──► flow.Request
    bytes ◄──writer── flow.Chunk, flow.Completion

`options` says how each of Ollama's options is handled. `models` describes the served model as Ollama does, `pull`
downloads models of the catalogue. Only `routes` and `pull` know the event loop.
"""
