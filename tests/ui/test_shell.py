"""What all pages have in common: accessibility, keyboard, themes, narrow screens, keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from helpers.browser import CLIPPED, SMALL_TEXT, PageErrors, violations
from helpers.server_process import PATIENCE_S, Server, StartingServer, until
from helpers.tiny_models import ENDLESS_TOKENS

Visit = Callable[..., Page]
PAGES = (
    "pipeline", "playground", "requests", "batch", "cache", "lab", "planner", "dashboard", "models", "keys", "usage",
)  # fmt: skip
PAGE_KEYS = "1234567890u"


def ask(server: Server) -> dict[str, Any]:
    body = {"model": server.model, "messages": [{"role": "user", "content": "Something " * 8}], "max_tokens": 20}
    httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE_S).raise_for_status()
    return body


@pytest.fixture(scope="module")
def used(server: Server) -> Server:
    """Pages with something on them: an empty one is easily accessible."""
    body = ask(server)
    endless = body | {"max_tokens": ENDLESS_TOKENS, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=endless, timeout=PATIENCE_S) as stream:
        next(stream.iter_lines())  # and hang up: the longest of usual finish reasons, cancelled
    until(server.idle, "the engine being idle after a cancelled request")
    return server


def settle(page: Page, name: str, server: Server) -> None:
    """Every part of the page that waits for an answer of the server has had it: a part that comes later would be laid
    out after it was looked at, or while it is."""
    if name == "pipeline":
        ask(server)  # the page shows where the time of the last minute's requests went
    ready = {
        "pipeline": (".stage-box", "[data-stage-figures=decode] dd", ".time-parts"),
        "playground": ("[data-page=playground]", ".welcome h2, .bubble"),
        "requests": (".split-detail .stages", ".trace canvas"),
        "requests list": ("a.request-row",),
        "batch": (".timeline[data-empty=false]", "[data-run=continuous] figcaption"),
        "cache": (".page-map", ".tree-scroll canvas"),
        "lab": (".matrix tr[data-token]",),
        "planner": ("[data-plan=kv_bytes_per_token]",),
        "dashboard": (".objectives summary", ".chart canvas"),
        "models": ("tr[data-deployment]",),
        "keys": (".empty",),  # test_admin.py looks at them on a server that has keys
        "usage": (".empty",),
    }
    for part in ready[name]:
        page.wait_for_selector(part)


def explain(page: Page) -> None:
    """Open the explanations of the page's terms."""
    for terms in page.locator(".terms:visible").all():
        terms.locator("summary").click()
        expect(terms.locator("dd").last).to_be_visible()


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(visit: Visit, used: Server, name: str) -> None:
    page = visit("requests/1" if name == "requests" else name)
    if name == "playground":
        page.get_by_label("Your message").fill("Hello **there**")
        page.keyboard.press("Enter")
        expect(page.locator("[data-figure=end]")).to_be_visible()
    settle(page, name, used)
    explain(page)
    assert page.evaluate(SMALL_TEXT) == []
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []
    if name == "playground":
        page.get_by_role("button", name="Tokens", exact=True).click()
        page.locator(".tok").first.hover()
        assert violations(page) == []


PLANNER_TABS = {
    "Speed and latency": "[data-plan=latency]",
    "Hardware": "[data-option=fits] .badge",
    "Load and cost": ".empty",
    "Speculation": ".heat",
    "Token budget": "[data-part=output]",
}


@pytest.mark.parametrize("width", [1280, 280])
def test_all_parts_of_the_planner_are_accessible_and_fit(visit: Visit, used: Server, width: int) -> None:
    page = visit("planner", width=width, height=720)
    for title, ready in PLANNER_TABS.items():
        page.get_by_role("link", name=title, exact=True).click()
        page.wait_for_selector(ready)
        assert width < 720 or violations(page) == []
        assert page.evaluate(SMALL_TEXT) == []
        assert page.evaluate(CLIPPED) == []
        assert page.evaluate("document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth")


@pytest.mark.parametrize("width", [375, 280])
@pytest.mark.parametrize("name", [*PAGES, "requests list"])
def test_nothing_is_wider_than_a_phone(visit: Visit, used: Server, name: str, width: int) -> None:
    """Nor clipped, and no figure is missing from a sentence."""
    place = {"requests": "requests/1", "requests list": "requests"}.get(name, name)
    page = visit(place, width=width, height=720)
    settle(page, name, used)
    explain(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth")
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(SMALL_TEXT) == []
    assert not re.search("– (ago|bits|tok)|undefined|NaN", page.locator("main").inner_text())
    expect(page.get_by_role("link", name="Dashboard")).to_be_visible()


def test_a_plan_of_long_figures_is_no_wider_than_a_phone(opened: Visit, used: Server) -> None:
    """What was measured has as many digits as the machine makes of it."""
    page = opened(used.url, width=280, height=720)

    def lengthen(route: Route) -> None:
        plan = (answer := route.fetch()).json()
        for row in plan["measured"]["rows"]:
            row |= {"theory": 1023.4e12, "measured": 1023.4e12, "ratio": 12345.6}
        route.fulfill(response=answer, json=plan)

    page.route("**/plan", lengthen)
    page.goto(f"{used.url}/ui/#/planner/speed")
    expect(page.get_by_text("1234560%").first).to_be_attached()
    assert page.evaluate("document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth")
    assert page.evaluate(CLIPPED) == []


def test_escape_closes_what_lies_over_a_page_and_nothing_else(visit: Visit, used: Server) -> None:
    page = visit("requests/1")
    for key, name in zip(PAGE_KEYS, PAGES, strict=True):
        page.keyboard.press(key)
        page.wait_for_selector(f"[data-page={name}] h1")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
    page.goto(f"{used.url}/ui/#/requests/1")
    settle(page, "requests", used)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator(".split-detail .stages")).to_be_visible()
    page.keyboard.press("Escape")  # and now it is the page's
    expect(page.locator(".split-detail .stages")).to_have_count(0)


def test_everything_can_be_reached_by_keyboard(visit: Visit, used: Server) -> None:
    page = visit("playground")
    titles = (
        "Pipeline", "Playground", "Requests", "Batch", "Cache", "Sampling lab", "Planner", "Dashboard", "Models",
        "Keys", "Usage",
    )  # fmt: skip
    for key, title in zip(PAGE_KEYS, titles, strict=True):
        page.keyboard.press(key)
        expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("2")
    expect(page.get_by_label("Your message")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("2 and 3 are text here")  # and go nowhere
    expect(page.get_by_label("Your message")).to_have_value("2 and 3 are text here")


def test_the_theme_follows_the_system_until_told_otherwise(visit: Visit, server: Server) -> None:
    page = visit("dashboard", theme="dark")
    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", "dark")
    page.get_by_label("Theme: system").click()
    expect(root).to_have_attribute("data-theme", "light")
    page.reload()
    expect(root).to_have_attribute("data-theme", "light")


def test_the_files_come_under_a_strict_policy(server: Server) -> None:
    answer = httpx.get(f"{server.url}/ui/", timeout=PATIENCE_S)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
    assert "unsafe" not in policy
    assert "<script>" not in answer.text
    assert "style=" not in answer.text


@pytest.fixture(scope="module")
def locked(chromium: str, tiny: Path) -> Iterator[Server]:
    with Server(tiny, "--kv-memory", "100MB", "--api-key", "right") as server:
        yield server


def test_a_key_is_asked_for_and_kept_in_the_tab(
    opened: Callable[..., Page], locked: Server, watched: PageErrors
) -> None:
    watched.allowed = ("401 (Unauthorized)",)
    page = opened(locked.url)
    page.goto(f"{locked.url}/ui/#/playground")
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog).to_be_visible()
    assert violations(page) == []
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(dialog).to_contain_text("Invalid API key")
    page.keyboard.type("right")
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    page.wait_for_selector("[data-state=live]", state="attached")
    page.get_by_label("Your message").fill("with a key")
    page.keyboard.press("Enter")
    expect(page.locator("[data-figure=prompt]")).to_be_visible()
    page.reload()
    page.wait_for_selector("[data-state=live]", state="attached")
    assert page.evaluate("[localStorage.length, sessionStorage.getItem('penstock-api-key')]") == [0, "right"]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("sk-\u2026abc", "“\u2026” (U+2026)"),  # as lists of keys show them
        ("wr\u2603ng", "“\u2603” (U+2603)"),
        ("schl\u00fcssel", "“\u00fc” (U+00FC)"),  # in Latin-1, which fetch would send
        ("right\u200bright", "contains U+200B"),  # not to be seen
    ],
    ids=ascii,
)
def test_a_key_that_cannot_be_sent_is_refused_in_the_dialog(
    opened: Callable[..., Page], locked: Server, watched: PageErrors, key: str, said: str
) -> None:
    watched.allowed = ("401 (Unauthorized)",)
    page = opened(locked.url)
    page.goto(f"{locked.url}/ui/#/playground")
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog).to_be_visible()
    page.keyboard.insert_text(key)
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text(said)
    expect(dialog.get_by_role("button", name="Continue")).to_be_disabled()
    assert violations(page) == []
    assert page.evaluate("sessionStorage.getItem('penstock-api-key')") is None
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(" right\u00a0")  # what is around it does no harm
    expect(dialog.get_by_role("alert")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    page.wait_for_selector("[data-state=live]", state="attached")


def test_a_tab_that_holds_a_key_that_cannot_be_sent_asks_for_another(
    opened: Callable[..., Page], locked: Server, watched: PageErrors
) -> None:
    watched.allowed = ("401 (Unauthorized)",)
    page = opened(locked.url)
    page.goto(f"{locked.url}/ui/icon.svg")
    page.evaluate("sessionStorage.setItem('penstock-api-key', 'wr\u2603ng')")
    page.goto(f"{locked.url}/ui/#/playground")
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog).to_contain_text("requires an API key")
    page.keyboard.type("right")
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    page.wait_for_selector("[data-state=live]", state="attached")


def test_it_says_that_the_connection_is_lost_and_finds_back(
    opened: Callable[..., Page], server: Server, watched: PageErrors
) -> None:
    watched.allowed = ("ERR_", "Failed to load")
    page = opened(server.url)
    page.goto(f"{server.url}/ui/#/batch")
    page.wait_for_selector(".timeline")
    page.wait_for_selector("[data-state=live]", state="attached")
    page.route("**/observe/**", lambda route: route.abort())
    page.keyboard.press("3")  # needs no steps any more: the connection is made anew
    page.wait_for_selector("[data-state=lost]", state="attached")
    expect(page.get_by_text("The server cannot be reached.")).to_be_visible()
    page.unroute("**/observe/**")
    page.wait_for_selector("[data-state=live]", state="attached")


def test_a_server_that_starts_says_what_it_is_doing(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[..., Page]
) -> None:
    with StartingServer(monkeypatch, tmp_path, tiny, "--kv-memory", "100MB") as server:
        page = opened(server.url)
        page.goto(f"{server.url}/ui/")
        expect(page.locator(".starting")).to_contain_text("Starting the engine")
        expect(page.locator(".pulse")).to_contain_text("Loading")
        assert not violations(page)
        server.let_start()
        expect(page.locator(".pulse")).to_contain_text("Live")
        expect(page.locator(".starting")).to_have_count(0)
        page.wait_for_selector("[data-page=pipeline] .stage-box")
        page.close()
