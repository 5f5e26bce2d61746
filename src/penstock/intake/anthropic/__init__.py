"""Anthropic's API: schemas and pure translations between it and `flow`. No sockets, no event loop.

    bytes ──parse──► schemas ──messages──► flow.Request
    bytes ◄──messages── flow.Chunk, flow.Completion

The parser, the base of the schemas and the rule for fields without effect are those of `intake.openai`; `neutral` is
the list of such fields here.
"""
