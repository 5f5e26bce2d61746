"""Fields of OpenAI's API that Penstock does not act on, and the values of them that ask for nothing.

Clients send such values all the time, because their own defaults say so. They are accepted, as null is everywhere; any
other value is refused with an error that names the field. The schemas and /openapi.json are made from these tables.
"""

from __future__ import annotations

from penstock.http.api.ignored_fields import Inert

# Fields of vLLM and llama.cpp, of chat and completions alike.
GENERATION = {
    # Where special tokens are shown, there are no spaces between them: decoders of a tokenizer.json put none there.
    "spaces_between_special_tokens": Inert((True, False)),
    "cache_prompt": Inert((True,)),  # the prefix cache is the server's setting
}

CHAT = {
    # What `tools` and `tool_choice` were before they had these names.
    "functions": Inert(([],)),
    "function_call": Inert(("none", "auto")),
    # There is one tier of service, and text is all that comes out.
    "service_tier": Inert(("auto", "default")),
    "modalities": Inert((["text"],)),
    "audio": Inert(),
    "verbosity": Inert(("medium",)),  # OpenAI's default: as the model has it
    "prediction": Inert(),
    "web_search_options": Inert(),
    "moderation": Inert(),
    "prompt_cache_options": Inert(),
    "prompt_cache_retention": Inert(("in_memory",)),  # which is what the prefix cache does
}

# Beside the names that vLLM has for what an answer must look like. White space in JSON is bounded, and objects that
# name their properties have no others, whatever is said here.
STRUCTURED = {
    "structural_tag": Inert(),
    "whitespace_pattern": Inert(),
    "disable_any_whitespace": Inert((False,)),
    "disable_additional_properties": Inert((True, False)),
    "guided_decoding_backend": Inert(("auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer")),
}

COMPLETIONS = {
    "suffix": Inert(("",)),
}

EMBEDDINGS = {
    "dimensions": Inert(),
}
