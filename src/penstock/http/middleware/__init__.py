"""What every HTTP request passes before it reaches a route, as plain ASGI middleware."""
