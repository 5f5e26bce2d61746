"""Ollama's API: schemas and pure translations between it and `flow`, and its routes.

    bytes ──parse──► schemas ──chat, generate, embed──► flow.Request
    bytes ◄──writer── flow.Chunk, flow.Completion

`options` says what becomes of each of Ollama's options. `models` describes the served model as Ollama does, `pull`
fetches models of the catalogue. Only `routes` knows sockets and the event loop.
"""
