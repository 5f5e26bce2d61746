"""POST /v1/responses, OpenAI's newer API: a conversation of items, which the server may keep for the next request.

schemas ──items──► flow.Request        flow.Chunk, flow.Completion ──writer──► answers
            ▲                                                            │
            └────────────────────────── store ◄──────────────────────────┘
"""
