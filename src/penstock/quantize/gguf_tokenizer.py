"""A tokenizer.json as the metadata of a GGUF file: the other way round of `store.gguf_tokenizer`.

GGUF names a pre-tokenizer instead of describing it, and SentencePiece's merges follow from scores. So what is written
is read again and must cut sample texts into the same tokens; the first name that does is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from penstock.errors import ModelInvalid
from penstock.store.files import ModelFiles
from penstock.store.gguf import Header
from penstock.store.gguf_tokenizer import build_tokenizer
from penstock.store.gguf_vocabulary import TokenType
from penstock.store.pretokenizers import PRETOKENIZERS, PreTokenizer

SAMPLES = (
    "Hello, world! It's 12:45 on 2024-11-18, and we've paid $1,234,567.89 for 3 apples.",
    "  leading spaces,\ttabs\n\nnew lines \r\n and    runs of   spaces  ",
    "def f(x):\n    return {'a': x ** 2, \"b\": [1, 22, 333, 4444]}  # comment\n",
    "Ünïcödé: naïve café, Ελληνικά, Русский язык, 日本語のテキスト, 한국어, العربية, हिन्दी",
    "🙂👩\u200d👩\u200d👧 e\u0301",
    "CamelCaseWords and SHOUTING, I'LL DON'T we'Re ... --- ==> https://example.com/a?b=c&d=%20e",
)


def tokenizer_metadata(files: ModelFiles) -> dict[str, Any]:
    """Keys and values; none if the model takes token ids only."""
    if files.tokenizer is None:
        return {}
    content = msgspec.json.decode(files.tokenizer.read_bytes())
    model, exact = content["model"], Tokenizer.from_file(str(files.tokenizer))
    if model.get("type") != "BPE":
        raise _unsupported(files.tokenizer, f"its model is {model.get('type')}, and only BPE can be written")
    base = _vocabulary(content, files) | _roles(files, exact)
    for candidate in _candidates(content, base):
        if _same(candidate, exact):
            return candidate
    raise _unsupported(files.tokenizer, "no pre-tokenizer that GGUF has a name for gives the same tokens")


def _vocabulary(content: dict[str, Any], files: ModelFiles) -> dict[str, Any]:
    ids = dict(content["model"]["vocab"])
    added = {token["content"]: token for token in content.get("added_tokens", ())}
    ids |= {text: token["id"] for text, token in added.items()}
    tokens = [f"[PAD{place}]" for place in range(files.spec.vocab_size)]
    types = [int(TokenType.UNUSED)] * len(tokens)
    for text, place in ids.items():
        if place >= len(tokens):
            raise _unsupported(files.tokenizer, f"its token {place} is beyond the vocabulary of {len(tokens)}")
        kind = TokenType.NORMAL
        if text in added:
            kind = TokenType.CONTROL if added[text]["special"] else TokenType.USER_DEFINED
        elif content["model"].get("byte_fallback") and len(text) == 6 and text.startswith("<0x"):
            kind = TokenType.BYTE
        tokens[place], types[place] = text, int(kind)
    return {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}


def _roles(files: ModelFiles, exact: Tokenizer) -> dict[str, Any]:
    """Ids of special tokens, and which of them go around a text."""
    roles: dict[str, Any] = {}
    for role, key in (("bos_token", "bos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        place = exact.token_to_id(files.special_tokens[role]) if role in files.special_tokens else None
        if place is not None:
            roles[f"tokenizer.ggml.{key}_token_id"] = place
    for key, place in zip(("eos", "eot", "eom"), files.spec.end_tokens, strict=False):
        roles[f"tokenizer.ggml.{key}_token_id"] = place
    around = exact.encode("").ids
    roles["tokenizer.ggml.add_bos_token"] = bool(around) and around[0] == roles.get("tokenizer.ggml.bos_token_id")
    roles["tokenizer.ggml.add_eos_token"] = bool(around) and around[-1] == roles.get("tokenizer.ggml.eos_token_id")
    if files.chat_template:
        roles["tokenizer.chat_template"] = files.chat_template
    return roles


def _candidates(content: dict[str, Any], base: dict[str, Any]) -> Iterator[dict[str, Any]]:
    merges = [" ".join(one) if isinstance(one, list) else one for one in content["model"]["merges"]]
    if not content["model"].get("byte_fallback"):
        tried: list[PreTokenizer] = []
        for name, pre in PRETOKENIZERS.items():
            if pre in tried:
                continue
            tried.append(pre)
            yield base | {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": name,
                "tokenizer.ggml.merges": merges,
            }
        return
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault(merge.replace(" ", "", 1), rank)
    last = float(len(merges) + 1)
    scores = [-float(ranks.get(text, last)) for text in base["tokenizer.ggml.tokens"]]
    for prefix in (True, False):
        yield base | {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.add_space_prefix": prefix,
        }


def _same(metadata: dict[str, Any], exact: Tokenizer) -> bool:
    try:
        written = Tokenizer.from_str(build_tokenizer(Header(metadata, {})))
    except ModelInvalid:
        return False
    return all(written.encode(text).ids == exact.encode(text).ids for text in SAMPLES)


def _unsupported(path: Path | None, why: str) -> ModelInvalid:
    return ModelInvalid(f"{path}: this tokenizer has no form in GGUF: {why}", param="model")
