"""The entries of [[safety]]: rules for what may go into models and come out of them (`gateway.safety`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock.errors import InvalidSetting
from penstock.settings.sections import Positive, Section, error_in_words
from penstock.system import typed

MAX_RULES = 256

Text = Annotated[str, Meta(min_length=1, max_length=4096)]


class SafetyEntry(Section, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:/-]{1,64}$")]
    terms: tuple[Text, ...] = ()
    patterns: tuple[Text, ...] = ()  # of RE2, each of bounded length
    max_chars: Positive | None = None
    hook: str | None = None  # a URL that answers as /v1/moderations does, or module:function
    hook_key_env: str | None = None  # the environment variable that holds the key of the URL
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 2.0  # of the hook
    on_failure: Literal["closed", "open"] = "closed"  # of the hook: a hit, or none
    on: Literal["input", "output", "both"] | None = None  # None: both; of a hook, the input
    ignore_case: bool | None = None  # None: of terms, not of patterns
    whole_words: bool = True  # of terms
    tenants: tuple[str, ...] = ()  # none: all


def parse_safety(raw: Any) -> list[dict[str, Any]]:
    """The entries as `Settings.safety` takes them. Raises InvalidSetting, which names the rule and the key."""
    if not isinstance(raw, list) or not all(isinstance(entry, dict) for entry in raw):
        raise InvalidSetting("safety must be a list of tables: [[safety]]", param="safety")
    if len(raw) > MAX_RULES:
        raise InvalidSetting(f"safety has {len(raw)} rules, at most {MAX_RULES}", param="safety")
    names = set()
    for number, entry in enumerate(raw):
        _check(_label(number, entry), entry)
        if entry["name"] in names:
            raise InvalidSetting(f"{_label(number, entry)}: name: two rules have this name", param="name")
        names.add(entry["name"])
    return raw


def _check(here: str, entry: dict[str, Any]) -> None:
    for key in entry:
        if key not in SafetyEntry.__struct_fields__:
            known = ", ".join(SafetyEntry.__struct_fields__)
            raise InvalidSetting(f"{here}: there is no setting {key}; known: {known}", param=key)
    try:
        rule = typed.convert(entry, SafetyEntry)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        param = path.strip("`").removeprefix("$").strip(".").partition("[")[0] or "safety"
        raise InvalidSetting(f"{here}: {param} {error_in_words(what)}", param=param) from None
    kinds = [bool(rule.terms or rule.patterns), rule.max_chars is not None, rule.hook is not None]
    if sum(kinds) != 1:
        raise InvalidSetting(f"{here}: a rule has terms and patterns, or max_chars, or a hook", param="safety")
    if "ignore_case" in entry and not (rule.terms or rule.patterns):
        raise InvalidSetting(f"{here}: ignore_case goes with terms and patterns", param="ignore_case")
    if "whole_words" in entry and not rule.terms:
        raise InvalidSetting(f"{here}: whole_words goes with terms", param="whole_words")
    if rule.hook is None and {"hook_key_env", "timeout_s", "on_failure"} & set(entry):
        raise InvalidSetting(f"{here}: hook_key_env, timeout_s and on_failure go with a hook", param="hook")
    if rule.hook_key_env is not None and not (rule.hook or "").startswith(("http://", "https://")):
        raise InvalidSetting(f"{here}: hook_key_env goes with a hook that is a URL", param="hook_key_env")


def _label(number: int, entry: dict[str, Any]) -> str:
    """How errors name an entry: "safety[0] (secrets)"."""
    name = entry.get("name")
    return f"safety[{number}]" + (f" ({name})" if isinstance(name, str) else "")
