"""Schemathesis hooks: insert the served model's name and a small max_tokens, so that generated requests reach the
engine and end soon."""

import os
from typing import Any

import schemathesis


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    body = case.body
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return
    if len(body["model"]) < 40:
        body["model"] = os.environ["SERVED_MODEL"]
    lengths = (body.get("max_tokens"), body.get("max_completion_tokens"))
    if case.path == "/v1/chat/completions" and lengths == (None, None):
        body["max_tokens"] = 4
    if case.path == "/v1/responses" and body.get("max_output_tokens") is None:
        body["max_output_tokens"] = 4
    options = body.get("options")
    if case.path in ("/api/chat", "/api/generate") and (options is None or isinstance(options, dict)):
        body["options"] = {"num_predict": 4, **(options or {})}
    if isinstance(body.get("previous_response_id"), str):
        del body["previous_response_id"]  # no stored response matches a generated id
