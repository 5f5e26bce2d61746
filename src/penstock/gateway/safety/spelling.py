"""How a text may be spelled: characters that are not seen, and the forms of a term that read the same."""

from __future__ import annotations

import re
import unicodedata

# Zero-width and other characters that are not seen (Default_Ignorable_Code_Point in Unicode, and the soft hyphen).
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\U000e0000-\U000e0fff"
)
_invisible = re.compile(f"[{_INVISIBLE}]")
_piece = re.compile(f"[{_INVISIBLE}]*[^{_INVISIBLE}]", re.DOTALL)


def has_invisible(text: str) -> bool:
    return not text.isascii() and _invisible.search(text) is not None


def visible(text: str) -> str:
    return text if text.isascii() else _invisible.sub("", text)


def split_visible(text: str) -> tuple[list[str], str]:
    """Each character with the invisible ones before it, and those at the end."""
    pieces = _piece.findall(text)
    return pieces, text[sum(map(len, pieces)) :]


def last_character(piece: str) -> str:
    return piece[-1]


def term_forms(term: str, *, ignore_case: bool) -> list[str]:
    """The spellings of a term, as texts: composed and decomposed (NFC and NFD), and its case folding (ß: ss). Without
    case, i stands for all letters i, with a dot and without."""
    seen = visible(term)
    forms = [seen]
    if ignore_case:
        seen = seen.replace("İ", "i").replace("ı", "i")
        forms = list(dict.fromkeys((seen.lower(), seen.casefold())))
    return list(dict.fromkeys(unicodedata.normalize(form, text) for text in forms for form in ("NFC", "NFD")))
