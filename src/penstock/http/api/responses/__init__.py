"""POST /v1/responses, OpenAI's newer API: a conversation of items, which the server may store for the next request.

schemas ──requests──► flow.Request        flow.Chunk, flow.Completion ──writer──► answers
            ▲                                                            │
            └────────────────────────── store ◄──────────────────────────┘
"""
