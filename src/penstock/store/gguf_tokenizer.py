"""Makes a Hugging Face `tokenizer.json` from a GGUF file's metadata.

The kinds of vocabulary, by `tokenizer.ggml.model`:

    gpt2    byte-level BPE: words cut by the pre-tokenizer named in the file, merges given
    llama   SentencePiece BPE: spaces are "▁", unknown characters fall back to bytes; merges follow from the scores
    gemma4  the same with its merges given
    t5      SentencePiece unigram: the likeliest segmentation by score

What a file leaves unsaid (whether a sequence begins with BOS, with a space) is filled in as llama.cpp does.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.store import pretokenizers
from penstock.store.gguf import Header
from penstock.store.gguf_vocabulary import Merge, TokenType, Vocabulary, array, invalid

SPACE = "▁"  # how SentencePiece writes one
Node = dict[str, Any]  # a part of tokenizer.json


def build_tokenizer(header: Header) -> str:
    """The text of a tokenizer.json that the `tokenizers` library loads."""
    kind = header.metadata.get("tokenizer.ggml.model")
    builder = _BUILDERS.get(kind) if isinstance(kind, str) else None
    if builder is None:
        raise invalid(f"its kind {kind!r} is not supported; there are {', '.join(_BUILDERS)}")
    try:
        return msgspec.json.encode(builder(Vocabulary.read(header))).decode()
    except UnicodeEncodeError as error:
        raise invalid(f"its token {error.object!r} is not valid UTF-8") from None


def _byte_level(vocabulary: Vocabulary) -> Node:
    pre = pretokenizers.named(str(vocabulary.setting("pre", "default")))
    return _document(
        vocabulary,
        normalizers=[{"type": "NFC"}] if pre.nfc else [],
        pre_tokenizer={"type": "Sequence", "pretokenizers": list(pre.steps)},
        model=_bpe(vocabulary, vocabulary.given_merges()) | {"ignore_merges": pre.ignore_merges},
        decoder=pretokenizers.byte_level(words=True),
        template=_template(vocabulary, add_bos=pre.add_bos),
    )


def _llama(vocabulary: Vocabulary) -> Node:
    return _sentencepiece(
        vocabulary,
        model=_bpe(vocabulary, vocabulary.scored_merges()) | _byte_fallback(vocabulary, unknown=0),
        template=_template(vocabulary, add_bos=True, bos=1, eos=2),
        space_prefix=vocabulary.setting("add_space_prefix", True),
    )


def _gemma4(vocabulary: Vocabulary) -> Node:
    return _sentencepiece(
        vocabulary,
        model=_bpe(vocabulary, vocabulary.given_merges()) | _byte_fallback(vocabulary),
        template=_template(vocabulary, add_bos=True),
        space_prefix=vocabulary.setting("add_space_prefix", False),
    )


def _t5(vocabulary: Vocabulary) -> Node:
    normalizers: list[Node] = []
    if charsmap := array(vocabulary.header, "precompiled_charsmap", int):
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": _charsmap(charsmap)})
    if vocabulary.setting("remove_extra_whitespaces", False):
        normalizers += [_replace({"Regex": "^ +| +$"}, ""), _replace({"Regex": " {2,}"}, " ")]
    return _sentencepiece(
        vocabulary,
        model={
            "type": "Unigram",
            "unk_id": vocabulary.role("unknown", 2),
            "vocab": list(zip(vocabulary.tokens, vocabulary.scores(), strict=True)),
            "byte_fallback": TokenType.BYTE in vocabulary.types,
        },
        template=_template(vocabulary, add_eos=True, eos=1),
        space_prefix=vocabulary.setting("add_space_prefix", False),
        normalizers=normalizers,
    )


_BUILDERS: dict[str, Callable[[Vocabulary], Node]] = {
    "gpt2": _byte_level,
    "llama": _llama,
    "gemma4": _gemma4,
    "t5": _t5,
}


def _sentencepiece(
    vocabulary: Vocabulary,
    *,
    model: Node,
    template: Node | None,
    space_prefix: bool,
    normalizers: list[Node] | None = None,
) -> Node:
    prefix: list[Node] = [{"type": "Prepend", "prepend": SPACE}] if space_prefix else []
    strip: list[Node] = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if space_prefix else []
    decoders = [_replace({"String": SPACE}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]
    return _document(
        vocabulary,
        normalizers=[*(normalizers or []), *prefix, _replace({"String": " "}, SPACE)],
        pre_tokenizer=None,
        model=model,
        decoder={"type": "Sequence", "decoders": decoders},
        template=template,
    )


def _document(
    vocabulary: Vocabulary,
    *,
    normalizers: list[Node],
    pre_tokenizer: Node | None,
    model: Node,
    decoder: Node,
    template: Node | None,
) -> Node:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": pre_tokenizer,
        "post_processor": template,
        "decoder": decoder,
        "model": model,
    }


def _bpe(vocabulary: Vocabulary, merges: list[Merge]) -> Node:
    """Merges as "left right" where that is unambiguous: the library takes two thirds of the time to load them that it
    takes for pairs, and half of the memory."""
    spaced = any(" " in text for text in vocabulary.ids)
    return {"type": "BPE", "vocab": vocabulary.ids, "merges": merges if spaced else [" ".join(one) for one in merges]}


def _byte_fallback(vocabulary: Vocabulary, unknown: int | None = None) -> Node:
    """Characters outside the vocabulary become their bytes, <0x00> to <0xFF>, or where those are missing, unknown."""
    text = vocabulary.tokens[vocabulary.role("unknown", unknown)]
    return {"byte_fallback": True, "unk_token": text, "fuse_unk": True}


def _charsmap(values: list[int]) -> str:
    """SentencePiece's compiled character map: the size of a trie of 4-byte units, the trie, and the replacements."""
    blob = bytes(value & 0xFF for value in values)  # stored as signed or unsigned
    trie_bytes = int.from_bytes(blob[:4], "little")
    if not 0 < trie_bytes < len(blob) - 4 or trie_bytes % 4:
        raise invalid("its precompiled_charsmap is damaged")
    return base64.b64encode(blob).decode()


def _replace(pattern: Node, content: str) -> Node:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _added_tokens(vocabulary: Vocabulary) -> list[Node]:
    """The tokens that are found in a text before anything else, and neither cut nor merged."""
    swallowing = _swallows_space(vocabulary)
    return [
        {
            "id": index,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": swallowing and text not in ("<unk>", "<s>", "<|endoftext|>"),
            "normalized": False,
            "special": index in vocabulary.special,
        }
        for text, index in vocabulary.ids.items()
        if index in vocabulary.special or vocabulary.types[index] == TokenType.USER_DEFINED
    ]


def _swallows_space(vocabulary: Vocabulary) -> bool:
    """Phi-3's markers take the white space after them along. Nothing in the metadata says so but the model's name."""
    header = vocabulary.header
    name = str(header.metadata.get("general.name", "")).lower().replace("-", "")
    return vocabulary.setting("model") == "llama" and (header.architecture == "phi3" or "phi3" in name)


def _template(
    vocabulary: Vocabulary,
    *,
    add_bos: bool = False,
    add_eos: bool = False,
    bos: int | None = None,
    eos: int | None = None,
) -> Node | None:
    """What goes around a sequence; the arguments are what holds where the file does not say."""
    before = [vocabulary.role("bos", bos)] if vocabulary.setting("add_bos_token", add_bos) else []
    after = [vocabulary.role("eos", eos)] if vocabulary.setting("add_eos_token", add_eos) else []
    if not before and not after:
        return None
    texts = {index: vocabulary.tokens[index] for index in before + after}

    def around(sequence: str) -> list[Node]:
        def marks(indices: list[int]) -> list[Node]:
            return [{"SpecialToken": {"id": texts[index], "type_id": 0}} for index in indices]

        return [*marks(before), {"Sequence": {"id": sequence, "type_id": 0}}, *marks(after)]

    return {
        "type": "TemplateProcessing",
        "single": around("A"),
        "pair": around("A") + around("B"),
        "special_tokens": {text: {"id": text, "ids": [index], "tokens": [text]} for index, text in texts.items()},
    }
