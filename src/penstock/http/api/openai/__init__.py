"""OpenAI's API: schemas and pure translations between it and `flow`. No sockets, no event loop.

    bytes ──parse──► schemas ──chat, completions, embeddings──► flow.Request
    bytes ◄──chat, completions, embeddings── flow.Chunk, flow.Completion

A field is honoured or refused, never ignored. `neutral` is the list of exceptions, and they ask for nothing.
"""
