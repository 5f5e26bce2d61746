"""The Playground as a chat that is kept: conversations, comparing, documents, structured output, drafts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from helpers.browser import CLIPPED, SMALL_TEXT, violations
from helpers.scripted_chat import answer_with, change_facts, stream, text_stream
from helpers.server_process import Server

Visit = Callable[..., Page]


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")
    expect(page.locator("article.answer").last.locator("[data-figure=end]")).to_be_visible()


def looks_well(page: Page) -> None:
    """In both themes, and at 280 px; then as before."""
    size = page.viewport_size
    assert size is not None
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 280, "height": 720})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(SMALL_TEXT) == []
    page.set_viewport_size(size)


def action(page: Page, title: str, name: str) -> None:
    button = page.get_by_label(f"Actions for {title}")
    if button.get_attribute("aria-expanded") == "false":
        button.click()
    page.locator(".entry-actions").get_by_role("button", name=name, exact=True).click()


def test_conversations_are_kept_found_renamed_exported_imported_and_deleted(
    visit: Visit, server: Server, tmp_path: Path
) -> None:
    page = visit("playground")
    answer_with(page, [text_stream(text) for text in ("# First\n\n```python\nx = 1\n```", "Another one", "Second")])
    ask(page, "A question about pumps")
    page.get_by_label("Regenerate").click()
    expect(page.get_by_text("2 / 2")).to_be_visible()
    expect(page.locator("article.answer [data-figure=end]")).to_be_visible()
    page.get_by_label("Previous branch").click()
    expect(page.locator(".hljs-number")).to_have_text("1")  # code has its colours
    page.keyboard.press("Escape")
    page.get_by_label("New conversation").click()
    expect(page.locator(".welcome")).to_be_visible()
    ask(page, "Something about wheels")
    page.get_by_label("Conversations", exact=True).first.click()
    entries = page.locator(".open-conversation")
    expect(entries).to_have_count(2)
    page.reload()
    page.wait_for_selector("[data-state=live]", state="attached")
    expect(page.locator(".welcome")).to_be_visible()
    page.get_by_label("Conversations", exact=True).first.click()
    page.get_by_label("Search conversations").fill("first PUMPS")  # in the answer and in the question
    expect(entries).to_have_count(1)
    action(page, "A question about pumps", "Rename")
    page.get_by_label("Name of the conversation").fill("Pumps & <b>valves</b>")
    page.keyboard.press("Enter")
    expect(entries).to_contain_text("Pumps & <b>valves</b>")
    looks_well(page)
    with page.expect_download() as download:
        action(page, "Pumps & <b>valves</b>", "JSON")
    download.value.save_as(saved := tmp_path / "saved.json")
    exported = json.loads(saved.read_text())
    assert [message["role"] for message in exported["messages"]] == ["user", "assistant", "assistant"]
    with page.expect_download() as download:
        action(page, "Pumps & <b>valves</b>", "Markdown")
    assert download.value.suggested_filename == "Pumps-b-valves-b.md"
    download.value.save_as(text := tmp_path / "saved.md")
    assert text.read_text().startswith("# Pumps & <b>valves</b>\n\n## You\n\nA question about pumps\n\n## Assistant")
    assert "x = 1" in text.read_text()  # the branch that was shown, not the newest
    entries.click()
    expect(page.get_by_text("1 / 2")).to_be_visible()
    page.get_by_label("Conversations", exact=True).first.click()
    action(page, "Something about wheels", "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(entries).to_have_count(1)
    for content, said in (("{}", "no list of messages"), ('{"messages": [{"role": "user", "parent": 3}]}', "parent")):
        saved.write_text(content)
        page.get_by_label("Import a conversation").set_input_files(saved)
        expect(page.locator(".history [role=alert]")).to_contain_text(said)
    saved.write_text(json.dumps(exported))
    page.get_by_label("Import a conversation").set_input_files(saved)
    expect(page.locator(".history")).to_have_count(0)
    expect(page.locator("article.question .bubble")).to_have_text("A question about pumps")
    page.get_by_label("Next branch").click()
    expect(page.locator("article.answer")).to_contain_text("Another one")


def test_two_lanes_are_compared_and_one_is_continued(visit: Visit, server: Server) -> None:
    page = visit("playground")
    sent = answer_with(page, [text_stream(text) for text in ("one", "two", "three", "four", "five")])
    page.get_by_label("Compare").click()
    page.get_by_role("button", name="Factual").click()
    page.get_by_label("Top-p", exact=True).first.fill("0.5")
    page.get_by_label("Top-p", exact=True).first.blur()
    expect(page.get_by_label("Warnings about the settings")).to_contain_text("Temperature 0")
    ask(page, "Compare")
    expect(page.locator("[data-figure=end]")).to_have_count(2)
    ask(page, "Again")
    expect(page.locator("[data-figure=end]")).to_have_count(4)
    second = [body for body in sent if body.get("temperature") == 0]
    assert [("temperature" in body, body.get("top_p")) for body in sent].count((True, 0.5)) == 2
    own = page.locator(".thread").nth(1).locator("article.answer .markdown").first.inner_text()
    assert [message["content"] for message in second[-1]["messages"]] == ["Compare", own, "Again"]
    looks_well(page)
    page.get_by_role("button", name="Go on with B").click()
    expect(page.locator("article.answer .markdown").first).to_have_text(own)
    ask(page, "More")
    assert sent[-1]["temperature"] == 0
    assert len(sent[-1]["messages"]) == 5


def test_documents_are_assembled_and_their_fate_is_shown(visit: Visit, server: Server, tmp_path: Path) -> None:
    page = visit("playground")
    page.evaluate(
        "sessionStorage.setItem('penstock-playground', JSON.stringify({numbers: {max_tokens: 4}, budget: 500}))"
    )
    page.reload()
    page.wait_for_selector("[data-state=live]", state="attached")
    (tmp_path / "pump.txt").write_text("The pump stops when the red button is pressed.")
    (tmp_path / "long.md").write_text("Wheels turn in the stream all day long. " * 100)
    (tmp_path / "picture.bin").write_bytes(b"\x89PNG\0\xff")
    (tmp_path / "huge.txt").write_text("x" * (2 << 20))
    field = page.get_by_label("Documents", exact=True)
    field.set_input_files([tmp_path / "picture.bin"])
    expect(page.locator(".composer [role=alert]")).to_contain_text("picture.bin is no UTF-8 text")
    field.set_input_files([tmp_path / "huge.txt"])
    expect(page.locator(".composer [role=alert]")).to_contain_text("larger than")
    field.set_input_files([tmp_path / "pump.txt", tmp_path / "long.md"])
    expect(page.locator(".composer .attachments li")).to_have_count(2)
    ask(page, "When does the pump stop?")
    trace = page.locator(".assembly")
    expect(trace.locator("summary")).to_contain_text(re.compile("kept"))
    trace.locator("summary").click()
    expect(trace.locator("tr[data-kind=document][data-action=kept]")).to_contain_text("pump.txt")
    expect(trace.locator("tr[data-kind=document]:not([data-action=kept])")).to_contain_text("long.md")
    page.get_by_label("See this request").click()
    expect(page.get_by_role("heading", name="Latency by stage")).to_be_visible()
    expect(page.get_by_role("heading", name="Context assembly")).to_be_visible()


def test_a_json_answer_is_a_tree_and_is_checked_against_the_schema(visit: Visit, server: Server) -> None:
    page = visit("playground")
    sent = answer_with(page, [text_stream('{"colour": "red", "size": 3}'), text_stream('{"colour": "blue"}')])
    page.locator("summary", has_text="Structured output").click()
    page.get_by_role("group", name="Form of the answer").get_by_role("button", name="Schema").click()
    for name, kind in (("colour", "choice"), ("size", "integer")):
        page.get_by_role("button", name="Add a field").click()
        page.get_by_label("Field name").last.fill(name)
        page.get_by_label(f"Type of {name}").select_option(kind)
    page.get_by_label("Choices of colour").fill("red, green")
    ask(page, "A thing")
    schema = sent[0]["response_format"]["json_schema"]["schema"]
    assert schema["properties"] == {"colour": {"enum": ["red", "green"]}, "size": {"type": "integer"}}
    assert schema["required"] == ["colour", "size"]
    expect(page.locator(".json-answer")).to_contain_text("matches the schema")
    expect(page.locator(".json-tree")).to_contain_text('colour: "red"')
    looks_well(page)
    ask(page, "Another")
    wrong = page.locator(".json-answer").last
    expect(wrong).to_contain_text("does not match the schema")
    expect(wrong).to_contain_text("size")
    page.get_by_label("Answer as text again").click()
    expect(page.locator("summary", has_text="Structured output")).to_be_visible()


def test_a_saved_system_prompt_comes_back(visit: Visit, server: Server) -> None:
    page = visit("playground")
    page.get_by_label("System prompt").first.fill("Answer like a pirate.")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_label("System prompt").first.fill("")
    page.get_by_label("Saved system prompts").select_option("Answer like a pirate.")
    expect(page.get_by_label("System prompt").first).to_have_value("Answer like a pirate.")
    page.get_by_label("Forget this system prompt").click()
    expect(page.get_by_label("Saved system prompts")).to_have_count(0)


def with_lookup(facts: dict[str, Any]) -> None:
    facts["engine"]["speculation"] = "lookup"


def test_drafts_are_seen_step_by_step(opened: Visit, server: Server) -> None:
    page = opened(server.url)
    change_facts(page, server, with_lookup)
    steps: list[dict[str, Any]] = [
        {"drafted": [], "accepted": 0, "tokens": ["The"]},
        {
            "drafted": [" <b>mill</b>", " turns", " fast"],
            "accepted": 2,
            "tokens": [" <b>mill</b>", " turns", " slowly"],
        },
    ]

    def logprobs(step: dict[str, Any]) -> dict[str, Any]:
        entry = {"logprob": -0.1, "top_logprobs": []}
        return {"content": [{**entry, "token": text, "bytes": list(text.encode())} for text in step["tokens"]]}

    chunks = [
        {"delta": {"content": "".join(step["tokens"])}, "drafts": [step], "logprobs": logprobs(step)} for step in steps
    ]
    sent = answer_with(page, [stream(*chunks)])
    page.goto(f"{server.url}/ui/#/playground")
    page.wait_for_selector("[data-state=live]", state="attached")
    page.get_by_role("button", name="Steps", exact=True).click()
    ask(page, "Draft")
    assert sent[0]["include_drafts"] is True
    rows = page.locator(".step-list li")
    expect(rows).to_have_count(2)
    expect(rows.nth(1).locator(".accepted")).to_have_text(["·<b>mill</b>", "·turns"])
    expect(rows.nth(1).locator(".rejected")).to_have_text("·fast")
    expect(rows.nth(1).locator(".own")).to_have_text("·slowly")
    expect(page.locator('[data-figure="tokens per step"]')).to_have_text("2.00")
    expect(page.locator("[data-figure=drafts]")).to_have_text("2 / 3")
    expect(page.locator(".positions dd")).to_have_text(["100%", "100%", "0%"])
    looks_well(page)
    page.get_by_role("button", name="Tokens", exact=True).click()
    expect(page.locator(".token-text .drafted")).to_have_text([" <b>mill</b>", " turns"], use_inner_text=True)
    page.locator(".token-text .tok").nth(3).click()
    expect(page.locator(".token-popover")).to_contain_text("own draw")
    assert violations(page) == []
