"""The error formats of the APIs, by path and header."""

from __future__ import annotations

from penstock.http.api.anthropic import error_body as anthropic
from penstock.http.api.ollama import error_body as ollama
from penstock.http.error_response import ErrorFormats

# Paths outside these have OpenAI's error format, for clients without the header.
ERROR_FORMATS = ErrorFormats(
    {anthropic.PATH_PREFIX: anthropic.render_error, ollama.PATH_PREFIX: ollama.render_error},
    {anthropic.VERSION_HEADER.encode(): anthropic.render_error},
)
