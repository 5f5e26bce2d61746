"""Fields of OpenAI's API that Penstock does not support, with their neutral values.

Clients send such values as their defaults. They are accepted, as null is everywhere; any other value is rejected with
an error that names the field. The schemas and /openapi.json are made from these tables.
"""

from __future__ import annotations

from penstock.http.api.ignored_fields import IgnoredField

# Fields of vLLM and llama.cpp, of chat and completions alike.
GENERATION = {
    # Special tokens are never separated by spaces: decoders of a tokenizer.json add none.
    "spaces_between_special_tokens": IgnoredField((True, False)),
    "cache_prompt": IgnoredField((True,)),  # the prefix cache is the server's setting
}

CHAT = {
    # The older names of `tools` and `tool_choice`.
    "functions": IgnoredField(([],)),
    "function_call": IgnoredField(("none", "auto")),
    # There is one service tier, and the output is text.
    "service_tier": IgnoredField(("auto", "default")),
    "modalities": IgnoredField((["text"],)),
    "audio": IgnoredField(),
    "verbosity": IgnoredField(("medium",)),  # OpenAI's default
    "prediction": IgnoredField(),
    "web_search_options": IgnoredField(),
    "moderation": IgnoredField(),
    "prompt_cache_options": IgnoredField(),
    "prompt_cache_retention": IgnoredField(("in_memory",)),  # which is what the prefix cache does
}

# Options of vLLM's structured outputs. White space in JSON is always bounded, and objects with named properties never
# have others.
STRUCTURED = {
    "structural_tag": IgnoredField(),
    "whitespace_pattern": IgnoredField(),
    "disable_any_whitespace": IgnoredField((False,)),
    "disable_additional_properties": IgnoredField((True, False)),
    "guided_decoding_backend": IgnoredField(("auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer")),
}

COMPLETIONS = {
    "suffix": IgnoredField(("",)),
}

EMBEDDINGS = {
    "dimensions": IgnoredField(),
}
