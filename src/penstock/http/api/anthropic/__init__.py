"""Anthropic's API: schemas, pure translations between it and `flow`, and its routes.

    bytes ──parse──► schemas ──messages──► flow.Request
    bytes ◄──messages── flow.Chunk, flow.Completion

`ignored_fields` lists the values that are accepted without effect. Only `routes` knows the event loop.
"""
