"""The pages of the documentation site that are generated from the code."""

from __future__ import annotations

import msgspec
import pytest

from penstock.settings import SECTIONS, Settings

docs_site = pytest.importorskip("docs_site", reason="needs the extra docs")


def test_every_setting_is_listed() -> None:
    page = docs_site.settings_page()
    for field in msgspec.structs.fields(Settings):
        if field.name in set(SECTIONS.values()):
            assert f"\n## {field.name}\n" in page
    missing = [name for name in SECTIONS if f"| `{name}` |" not in page]
    assert missing == []
    assert "| `port` | `8000` |" in page


def test_every_route_is_listed_with_its_fields() -> None:
    page = docs_site.api_page()
    for heading in ("POST /v1/chat/completions", "POST /v1/messages", "GET /v1/models", "POST /admin/keys"):
        assert f"\n## {heading}\n" in page
    chat = page.partition("## POST /v1/chat/completions\n")[2].partition("\n## ")[0]
    assert "| `temperature` | number |" in chat
    assert "| `messages` |" in chat


def test_links_out_of_the_site_become_names() -> None:
    outside = "[`a.py`](../src/a.py) and [b](B.md)"

    class File:
        src_uri = "PAGE.md"

    class Page:
        file = File()

    assert docs_site.on_page_markdown(outside, Page(), None, None) == "`a.py` and [b](B.md)"
