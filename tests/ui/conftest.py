"""A real browser on a real server. The browser is the system's Chromium; without one these tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from helpers import tiny_models
from helpers.browser import DIST, FLAGS, PageErrors
from helpers.server_process import PATIENCE_S, Server


@pytest.fixture(scope="session")
def chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium on this machine")
    if not (DIST / "index.html").is_file():
        pytest.skip("the web interface is not built: make ui")
    return found


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("llama", tmp_path_factory.mktemp("tiny"), max_position_embeddings=tiny_models.LONG_CONTEXT)


@pytest.fixture(scope="session")
def server(chromium: str, tiny: Path) -> Iterator[Server]:
    with Server(tiny, "--kv-memory", "100MB", "--keep-texts") as server:
        yield server


# Not of the session: while it runs, Playwright keeps an event loop in this thread, which others would trip over.
@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def watched() -> Iterator[PageErrors]:
    """Of every page a test opens: no error in its console, which is where the policy's violations go, and no request
    to anywhere but the server."""
    found = PageErrors()
    yield found
    found.assert_none()


@pytest.fixture
def opened(browser: Browser, watched: PageErrors) -> Iterator[Callable[..., Page]]:
    contexts: list[BrowserContext] = []

    def make(url: str, *, width: int = 1280, height: int = 900, theme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            permissions=["clipboard-read", "clipboard-write"],
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_S * 1000)
        page = context.new_page()
        page.on("console", lambda said: watched.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on("request", lambda asked: watched.foreign.append(asked.url) if not asked.url.startswith(url) else None)
        return page

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def visit(opened: Callable[..., Page], server: Server) -> Callable[..., Page]:
    """`visit("batch")`: that page of the interface, with the live connection up."""

    def make(page_name: str, **options: object) -> Page:
        page = opened(server.url, **options)
        page.goto(f"{server.url}/ui/#/{page_name}")
        page.wait_for_selector("[data-state=live]", state="attached")
        return page

    return make
