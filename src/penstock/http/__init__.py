"""The HTTP edge: requests are parsed and checked here, once, and answers take the form clients know.

The way of a request, in its order:

    server, port, wire       the process and its socket; HTTP/1.1 with bounded headers
    guards                   before any route: id, origin, key, size of the body
    app                      which route does what; `described` is what FastAPI is told of them
    body, decode, parse      bytes -> JSON -> a schema's instance, or an error that names the field
    openai/, anthropic/,     schemas -> flow.Request, and flow.Chunk -> bodies and events, in the words of each API
      ollama/
    visit, service              the events on the way in; what all routes share, and the way to the engine
    respond, events          answers out, whole or streamed, while the client is watched
    failure, problems        errors on their way to the client

What the APIs' schemas and answers share: fields, unions, inert, wording, turns, answers, recommended. Routes beside
them: glass, views and lab (what happens inside), plan, ui, docs and openapi; query and trace_context read a URL's
parameters and trace headers.
"""
