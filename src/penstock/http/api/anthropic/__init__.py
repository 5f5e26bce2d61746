"""Anthropic's API: schemas and pure translations between it and `flow`. No sockets, no event loop.

    bytes ──parse──► schemas ──messages──► flow.Request
    bytes ◄──messages── flow.Chunk, flow.Completion

`neutral` lists the fields that are taken without effect.
"""
