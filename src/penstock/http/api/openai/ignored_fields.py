"""Fields of OpenAI's API that Penstock does not act on, and the values of them that ask for nothing.

Clients send such values all the time, because their own defaults say so. They are accepted, as null is everywhere; any
other value is refused with an error that names the field. The schemas and /openapi.json are made from these tables.
"""

from __future__ import annotations

from penstock.http.api.ignored_fields import IgnoredField

# Fields of vLLM and llama.cpp, of chat and completions alike.
GENERATION = {
    # Where special tokens are shown, there are no spaces between them: decoders of a tokenizer.json put none there.
    "spaces_between_special_tokens": IgnoredField((True, False)),
    "cache_prompt": IgnoredField((True,)),  # the prefix cache is the server's setting
}

CHAT = {
    # What `tools` and `tool_choice` were before they had these names.
    "functions": IgnoredField(([],)),
    "function_call": IgnoredField(("none", "auto")),
    # There is one tier of service, and text is all that comes out.
    "service_tier": IgnoredField(("auto", "default")),
    "modalities": IgnoredField((["text"],)),
    "audio": IgnoredField(),
    "verbosity": IgnoredField(("medium",)),  # OpenAI's default: as the model has it
    "prediction": IgnoredField(),
    "web_search_options": IgnoredField(),
    "moderation": IgnoredField(),
    "prompt_cache_options": IgnoredField(),
    "prompt_cache_retention": IgnoredField(("in_memory",)),  # which is what the prefix cache does
}

# Beside the names that vLLM has for what an answer must look like. White space in JSON is bounded, and objects that
# name their properties have no others, whatever is said here.
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
