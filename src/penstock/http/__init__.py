"""The HTTP server: parses and checks requests once, at the edge, and writes responses in the form clients know.

In the order of a request:

    server, port, protocol   the process's life, its socket, HTTP/1.1 with limits on headers and slow clients
    app                      composes routes, error formats and middleware
    middleware/              request id, auth, CORS, Host, body limit, admission
    api/                     openai, anthropic, responses, ollama, and above them what they share: schemas to
                             flow.Request, flow.Chunk to bodies and events; capacity and tokenizer routes
    parse/                   bytes to JSON to a schema's instance, or an error that names the field; query strings
    request_events           the events of a request until it is submitted
    service                  the model, pipeline and replica that all routes share
    streaming, sse           responses out, whole or as server-sent events, while the client is watched
    error_response           from an exception to a response, in the format of the client's API (error_body)

Beside these: debug/ (what happens inside), operations (health, metrics), ui, openapi/ (/openapi.json and /docs).
"""
