"""What is said of names in a settings file that there are not. `sections` has the section of each setting."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from penstock.errors import did_you_mean


def unknown_setting(name: str, section: str, sections: Mapping[str, str]) -> str:
    """Of a section."""
    if name in sections:
        return f"{name} is not a setting of [{section}]: it goes under [{sections[name]}]"
    return f"[{section}] has no setting {name}{did_you_mean(name, sections)}"


def unknown_section(name: str, content: Any, sections: Mapping[str, str], entries: Collection[str]) -> str:
    """Of what is at the top level of a file, and no section as a table. `entries`: names of lists, as in [[models]]."""
    tables = [*dict.fromkeys(sections.values())]
    if name in tables:
        several = "; several models are [[models]]" if name == "model" else ""
        return f"{name} must be a table: [{name}]{several}"
    if name in sections:
        return f"{name} is a setting: it goes under [{sections[name]}]"
    if isinstance(content, dict | list):
        known = [*(f"[{table}]" for table in tables), *(f"[[{one}]]" for one in entries)]
        given = f"[{name}]" if isinstance(content, dict) else f"[[{name}]]"
        return f"unknown section {given}{did_you_mean(given, known)}; known: {', '.join(known)}"
    close = difflib.get_close_matches(name, sections, n=1)
    guess = f"; did you mean {close[0]}, which goes under [{sections[close[0]]}]?" if close else ""
    return f"there is no setting {name}{guess}"
