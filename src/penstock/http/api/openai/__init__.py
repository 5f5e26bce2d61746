"""OpenAI's API: schemas, pure translations between it and `flow`, and its routes.

    bytes ──parse──► schemas ──chat, completions, embeddings──► flow.Request
    bytes ◄──chat, completions, embeddings── flow.Chunk, flow.Completion

Unsupported fields are rejected, never ignored. `ignored_fields` lists the exceptions: neutral values, accepted without
effect. Only `routes` and `stored_routes` know the event loop.
"""
