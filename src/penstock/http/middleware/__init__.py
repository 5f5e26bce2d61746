"""Plain ASGI middleware: what every HTTP request passes before it reaches a route. Nothing here knows an API.

From the outside in:

    request_id      x-request-id, trace context, access log
    hosts           the Host header, against DNS rebinding
    version_prefix  /chat/completions is served as /v1/chat/completions
    cors            which origins may call from a browser
    head            HEAD is answered as GET without the body
    auth            API keys; the key decides the identity (`tenants`)
    body_limit      bytes of request bodies, of one request and of all
    admission       a burst of requests is admitted a few per event-loop turn
"""
