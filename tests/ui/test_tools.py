"""Tools in the Playground: functions answered by hand, and an MCP server, whose calls wait for consent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from helpers.browser import CLIPPED, PageErrors, violations
from helpers.mcp_server import McpServer
from helpers.scripted_chat import answer_with, stream, text_stream
from helpers.server_process import Server

Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def bells() -> Iterator[McpServer]:
    with McpServer() as server:
        yield server


@pytest.fixture(scope="module")
def allowing(chromium: str, tiny: Path, bells: McpServer) -> Iterator[Server]:
    with Server(tiny, "--kv-memory", "20MB", "--mcp-server", f"{bells.url}, http://127.0.0.1:1/mcp") as server:
        yield server


def call(name: str, given: str, number: int = 1) -> str:
    """The answer that calls a tool, its arguments in two pieces."""
    head = {"index": 0, "id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": given[:4]}}
    rest = {"index": 0, "function": {"arguments": given[4:]}}
    return stream({"delta": {"tool_calls": [head]}}, {"delta": {"tool_calls": [rest]}}, finish="tool_calls")


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def open_tools(opened: Visit, server: Server, watched: PageErrors) -> Page:
    page = opened(server.url)
    page.goto(f"{server.url}/ui/#/playground")
    page.wait_for_selector("[data-state=live]", state="attached")
    page.locator("summary", has_text="Tools").click()
    return page


def test_tools_of_an_mcp_server_run_with_consent(
    opened: Visit, allowing: Server, bells: McpServer, watched: PageErrors
) -> None:
    watched.allowed = ("CORS policy", "ERR_FAILED", "ERR_CONNECTION_REFUSED", "ERR_UNSAFE_PORT")
    page = open_tools(opened, allowing, watched)
    connect = page.get_by_role("button", name="Connect", exact=True)
    bells.origin = ""
    connect.first.click()
    problem = page.locator(".tool-form [role=alert]").first
    expect(problem).to_contain_text(f"does it allow the origin {allowing.url}")
    bells.origin = allowing.url
    bells.received.clear()
    connect.first.click()
    expect(page.locator("summary", has_text="Tools (1)")).to_be_visible()
    assert [message["method"] for message in bells.received] == [
        "initialize",
        "notifications/initialized",
        "tools/list",
    ]
    loop = [call("ring_bell", '{"times": 2}', number) for number in range(1, 11)]
    sent = answer_with(page, [*loop, text_stream("It rang.")])
    ask(page, "Ring the bell")
    allow = page.get_by_role("button", name="Allow this call")
    expect(allow).to_have_count(1)
    assert violations(page) == []
    expect(page.get_by_label("Call of ring_bell")).to_contain_text("times: 2")
    assert sent[0]["tools"][0]["function"]["name"] == "ring_bell"
    assert [message["method"] for message in bells.received].count("tools/call") == 0  # nothing without consent
    allow.click()
    expect(page.locator(".tool-result")).to_have_count(1)
    expect(page.locator(".tool-result")).to_contain_text("<b>dong</b> <b>dong</b>")
    page.get_by_role("button", name="Refuse").click()
    expect(page.locator(".tool-result").nth(1)).to_contain_text("did not allow")
    assert [message["method"] for message in bells.received].count("tools/call") == 1
    assert sent[1]["messages"][-1] == {"role": "tool", "tool_call_id": "call_1", "content": "<b>dong</b> " * 2}
    for done in range(3, 9):
        allow.click()
        expect(page.locator(".tool-result")).to_have_count(done)
    expect(allow).to_have_count(0)  # the ninth answer in a row
    page.get_by_role("button", name="Go on").click()
    for done in (9, 10):
        allow.click()
        expect(page.locator(".tool-result")).to_have_count(done)
    expect(page.locator("article.answer").last).to_contain_text("It rang.")
    page.set_viewport_size({"width": 280, "height": 720})
    assert page.evaluate(CLIPPED) == []
    only = set(watched.foreign)
    assert only == {bells.url}
    watched.foreign.clear()


def test_a_function_is_answered_by_hand(opened: Visit, server: Server, watched: PageErrors) -> None:
    page = open_tools(opened, server, watched)
    expect(page.get_by_text("--mcp-server")).to_be_visible()  # none is allowed here: it says how
    page.get_by_role("button", name="Add a function").click()
    page.get_by_label("Name", exact=True).fill("weather")
    page.get_by_role("group", name="Parameters of weather").get_by_role("button", name="Add a field").click()
    page.get_by_label("Field name").fill("city")
    sent = answer_with(page, [call("weather", '{"city": "Oslo"}'), text_stream("Cloudy.")])
    ask(page, "Weather in Oslo?")
    page.get_by_label("Result of weather").fill('{"sky": "cloudy"}')
    assert violations(page) == []
    page.get_by_role("button", name="Send the result").click()
    expect(page.locator("article.answer").last).to_contain_text("Cloudy.")
    tool: dict[str, Any] = sent[0]["tools"][0]["function"]
    assert (tool["name"], tool["parameters"]["properties"]) == ("weather", {"city": {"type": "string"}})
    assert [message["role"] for message in sent[1]["messages"]] == ["user", "assistant", "tool"]
    assert sent[1]["messages"][1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
