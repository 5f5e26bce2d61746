"""How byte-level vocabularies cut text into words before merging, by the name in GGUF files (`tokenizer.ggml.pre`).

The entries are the `pre_tokenizer` steps of the models' published `tokenizer.json` files, so that the tokens are those
the models were trained on; the names, and what a file may leave unsaid under each name, are llama.cpp's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import ModelInvalid

Step = dict[str, Any]  # one node of a tokenizer.json pipeline


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    steps: tuple[Step, ...]
    nfc: bool = False  # text is composed (Unicode NFC) first
    ignore_merges: bool = False  # a word that is in the vocabulary is one token, without merges
    add_bos: bool = False  # where the file does not say


def named(name: str) -> PreTokenizer:
    try:
        return PRETOKENIZERS[name]
    except KeyError:
        raise ModelInvalid(
            f"the tokenizer's pre-tokenizer {name!r} is not supported; there are {', '.join(sorted(PRETOKENIZERS))}",
            param="model",
        ) from None


def byte_level(*, words: bool) -> Step:
    """Bytes to the 256 letters a byte-level vocabulary is written in; with `words`, cuts as GPT-2 did first."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": words}


def _split(pattern: str) -> Step:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _cl100k(numbers: str, letters: str = r"\p{L}", marks: str = "") -> str:
    """The pattern of the cl100k family; its members differ in how many digits a word takes and where marks go."""
    return (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{numbers}| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def _o200k(numbers: str, suffix: str = "") -> str:
    """The pattern of the o200k family: words also end where capitals begin."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_DIGITS: Step = {"type": "Digits", "individual_digits": True}
_NUMBERS: Step = {"type": "Digits", "individual_digits": False}
_PUNCTUATION: Step = {"type": "Punctuation", "behavior": "Contiguous"}
_WORDS = byte_level(words=True)
_BYTES = byte_level(words=False)
_THREE_DIGITS = _split(r"\p{N}{1,3}")
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# cased scripts as DeepSeek LLM lists them; escaped are those an editor might normalise away
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)

_GPT2 = PreTokenizer((_WORDS,))
_DIGITS_WORDS = PreTokenizer((_DIGITS, _WORDS))
_CL100K = PreTokenizer((_split(_cl100k(r"\p{N}{1,3}")), _BYTES))
_CL100K_DIGITS = PreTokenizer((_split(_cl100k(r"\p{N}")), _BYTES))
_LLAMA3 = replace(_CL100K, ignore_merges=True, add_bos=True)
_QWEN2 = replace(_CL100K_DIGITS, nfc=True)
_QWEN35 = PreTokenizer((_split(_cl100k(r"\p{N}", letters=r"[\p{L}\p{M}]", marks=r"\p{M}")), _BYTES), nfc=True)
_O200K = PreTokenizer((_split(_o200k(r"\p{N}{1,3}", _CONTRACTIONS)), _BYTES))
_TEKKEN = PreTokenizer((_split(_o200k(r"\p{N}")), _BYTES), ignore_merges=True, add_bos=True)
_FALCON = PreTokenizer((_PUNCTUATION, _WORDS, _NUMBERS, _split("[0-9][0-9][0-9]")))
_BLOOM_WORDS = _split(r" ?[^(\s|[.,!?…。，、।۔،])]+")
_DEEPSEEK_LLM = PreTokenizer(
    (
        _split("[\r\n]"),
        _split(rf"\s?[{_DEEPSEEK_LETTERS}]+"),
        _split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
        _split(r"\s+$"),
        _split("[一-龥ࠀ-一가-퟿]+"),
        _DIGITS,
        _BYTES,
    )
)
_DEEPSEEK_CODER = PreTokenizer(
    (_split("[\r\n]"), _split(r"\s?\p{L}+"), _split(r"\s?\p{P}+"), _split("[一-龥ࠀ-一가-퟿]+"), _DIGITS, _BYTES)
)
_DEEPSEEK_V3 = PreTokenizer(
    (
        _THREE_DIGITS,
        _split("[一-龥぀-ゟ゠-ヿ]+"),
        _split(
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
        ),
        _BYTES,
    )
)
_SEED_CODER = PreTokenizer(
    (
        _split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        _BYTES,
    )
)
_BAILING = PreTokenizer(
    (
        _split(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
            r"|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
        _BYTES,
    )
)
_MINICPM5 = PreTokenizer((_THREE_DIGITS, _split(_cl100k(r"\p{N}+")), _BYTES), ignore_merges=True)
# what llama.cpp does for files made before pre-tokenizers had names
_UNNAMED = PreTokenizer(
    (
        _split(r"[\p{P}\$\+<=>\^~\|]+"),
        _split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
        _split(r"\p{N}+"),
        _split("[0-9][0-9][0-9]"),
        _BYTES,
    )
)

_FAMILIES: tuple[tuple[PreTokenizer, str], ...] = (
    (_UNNAMED, "default"),
    (_GPT2, "gpt-2 phi-2 gigachat jais trillion granite-docling a.x-4.0 mellum exaone4"),
    (replace(_GPT2, nfc=True), "mpt olmo"),
    (_DIGITS_WORDS, "smollm starcoder refact codeshell exaone minerva-7b mellum2"),
    (replace(_DIGITS_WORDS, nfc=True), "command-r"),
    (_CL100K, "dbrx smaug-bpe chatglm-bpe"),
    (replace(_CL100K, ignore_merges=True), "glm4 glm5"),
    (_LLAMA3, "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2"),
    (_CL100K_DIGITS, "stablelm2 hunyuan solar-open grok-2"),
    (_QWEN2, "qwen2 deepseek-r1-qwen megrez kormo"),
    (_QWEN35, "qwen35"),
    (_O200K, "gpt-4o llama4 kanana2 minimax-m2"),
    (_TEKKEN, "tekken"),
    (_FALCON, "falcon"),
    (PreTokenizer((_BLOOM_WORDS, _BYTES)), "bloom poro-chat gpt3-finnish"),
    (PreTokenizer((_BLOOM_WORDS, _DIGITS, _BYTES)), "viking"),
    (_DEEPSEEK_LLM, "deepseek-llm"),
    (_DEEPSEEK_CODER, "deepseek-coder"),
    (_DEEPSEEK_V3, "deepseek-v3 hunyuan-dense joyai-llm"),
    (_SEED_CODER, "seed-coder"),
    (_BAILING, "bailingmoe bailingmoe2 llada-moe"),
    (_MINICPM5, "minicpm5"),
)
PRETOKENIZERS = {name: kind for kind, names in _FAMILIES for name in names.split()}
