"""Several frontend processes of one server: docs/SCALING.md.

    client ─► frontend 1 ─┬─► engine         HTTP, template, tokens ↔ text, SSE: each frontend by itself
    client ─► frontend 2 ─┘     ▲
                  │ messages    │ records of steps
                  ▼             │
             control process ───┘            keys, limits, ledger, journal, stored responses, batches, metrics

The control process is the server that was started. It owns everything that must exist once, starts the engines
and the frontends, and answers all requests except those for generation. Frontends forward the others to it.

messages      what frontends and the control process tell each other
supervisor    in the control process: starts, watches and replaces frontends
peer          in the control process: one frontend, and what it has reserved
worker        the entry point of a frontend process
control_link  in a frontend: its end of the socket to the control process
remote        in a frontend: limits, usage, stored responses and metrics, kept by the control process
gate, proxy   in a frontend: which requests it answers, and how the others reach the control process
"""
