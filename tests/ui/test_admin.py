"""The pages for operators, on a server with keys, two replicas, an upstream that is dead, and a route."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from helpers.browser import PageErrors
from helpers.server_process import PATIENCE_S, Server

USER, ADMIN = "user-key", "admin-key"
HOSTILE = "<img src=x onerror=alert(1)>"
REFUSED = ("401 (Unauthorized)", "403 (Forbidden)")


@pytest.fixture(scope="module")
def gateway(chromium: str, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = probe.getsockname()[1]
    file = tmp_path_factory.mktemp("gateway") / "penstock.toml"
    file.write_text(
        f"""
        [serve]
        api_key = "{USER}"
        admin_key = "{ADMIN}"

        [routing]
        fallback_rounds = 0

        [[models]]
        name = "near"
        model = "{tiny}"
        kv_memory = "20MB"
        replicas = 2
        price = {{ input = 0.1, output = 0.4 }}

        [[models]]
        name = "far"
        upstream = "http://127.0.0.1:{dead}/v1"
        fallback = [{{ model = "near", max_tokens = 4 }}]

        [[routes]]
        name = "auto"
        models = ["far", "near"]
        policy = "name"
        """
    )
    with Server(f"--config={file}") as gateway:
        yield gateway


@pytest.fixture
def enter(opened: Callable[..., Page], gateway: Server, watched: PageErrors) -> Callable[..., Page]:
    """`enter("models")`: that page, in a tab that has the user's API key."""
    watched.allowed = REFUSED

    def make(page_name: str, key: str = USER) -> Page:
        page = opened(gateway.url)
        page.goto(f"{gateway.url}/ui/icon.svg")
        page.evaluate("key => sessionStorage.setItem('penstock-api-key', key)", key)
        page.goto(f"{gateway.url}/ui/#/{page_name}")
        return page

    return make


def unlock(page: Page, key: str = ADMIN) -> None:
    page.get_by_label("Admin key", exact=True).fill(key)
    page.keyboard.press("Enter")


def stored(page: Page) -> list[str]:
    """All that the tab and the browser keep, and the address."""
    found = page.evaluate(
        "[...Object.values(localStorage), ...Object.values(sessionStorage), location.href, document.cookie]"
    )
    assert isinstance(found, list)
    return found


def ask(gateway: Server, model: str) -> str:
    """The id of the request."""
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    headers = {"authorization": f"Bearer {USER}"}
    answer = httpx.post(f"{gateway.api}/chat/completions", json=body, headers=headers, timeout=PATIENCE_S)
    return answer.headers["x-request-id"]


def test_an_admin_key_is_asked_for_and_stays_in_memory(enter: Callable[..., Page], gateway: Server) -> None:
    page = enter("models")
    field = page.get_by_label("Admin key", exact=True)
    expect(field).to_be_focused()
    unlock(page, USER)
    expect(page.get_by_role("alert")).to_contain_text("not an admin key")
    unlock(page)
    expect(page.locator("tr[data-deployment='near/1']")).to_be_visible()
    assert not [text for text in stored(page) if ADMIN in text]
    assert ADMIN not in page.content()
    page.get_by_role("button", name="Lock").click()
    expect(field).to_have_value("")
    expect(page.locator("tr[data-deployment]")).to_have_count(0)
    unlock(page)
    page.reload()
    expect(field).to_be_visible()  # it was in memory only
    page.get_by_label("Keep it in this tab").check()
    unlock(page)
    expect(page.locator("tr[data-deployment='near/1']")).to_be_visible()
    page.reload()
    expect(page.locator("tr[data-deployment='near/1']")).to_be_visible()
    page.get_by_role("button", name="Lock").click()
    assert not [text for text in stored(page) if ADMIN in text]


def test_an_admin_key_in_the_tabs_storage_moves_to_memory(enter: Callable[..., Page]) -> None:
    page = enter("models", key=ADMIN)
    expect(page.locator("tr[data-deployment='near/1']")).to_be_visible()
    page.wait_for_selector("[data-state=live]", state="attached")
    assert not [text for text in stored(page) if ADMIN in text]


def test_models_sleep_wake_come_and_go(enter: Callable[..., Page], watched: PageErrors, tiny: Path) -> None:
    page = enter("models")
    watched.allowed += ("400 (Bad Request)",)
    unlock(page)
    near = page.locator(".card.model", has=page.locator("[data-actions=near]"))
    expect(near).to_contain_text("$0.1 in, $0.4 out")
    expect(near.get_by_text("structured output")).to_be_visible()
    expect(page.locator("tr[data-deployment='far/0']")).to_contain_text("closed")
    page.get_by_role("button", name="Sleep near").click()
    expect(page.locator("tr[data-deployment='near/0']")).to_contain_text("asleep")
    page.get_by_role("button", name="Wake near").click()
    expect(page.locator("tr[data-deployment='near/0']")).to_contain_text("ready")
    page.keyboard.press("n")
    dialog = page.get_by_role("dialog", name="Add model")
    dialog.get_by_label("Name", exact=True).fill("near")
    dialog.get_by_label("Model", exact=True).fill(str(tiny))
    dialog.get_by_label("Load on the first request").check()
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("is taken")
    expect(dialog.get_by_label("Name", exact=True)).to_have_attribute("aria-invalid", "true")
    dialog.get_by_label("Name", exact=True).fill(HOSTILE.replace(" ", "/"))
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog).to_have_count(0)
    added = page.locator(".card.model", has_text=HOSTILE.replace(" ", "/"))
    expect(added).to_contain_text("unloaded")
    added.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(added).to_have_count(0)


def test_a_request_tells_how_it_was_routed(enter: Callable[..., Page], gateway: Server) -> None:
    page = enter(f"requests/{ask(gateway, 'auto')}")
    steps = page.locator(".route > li")
    expect(steps).to_have_count(3)
    expect(steps.nth(0)).to_contain_text("Chose far by name")
    expect(steps.nth(1)).to_contain_text("it cannot be reached")
    expect(steps.nth(2).locator("tr[data-chosen=true]")).to_contain_text("tokens cached")
    expect(steps.nth(2).locator("tr[data-chosen=false]")).to_have_count(1)


def test_a_request_for_an_unknown_model_is_no_models(enter: Callable[..., Page], gateway: Server) -> None:
    page = enter(f"requests/{ask(gateway, HOSTILE)}")
    expect(page.locator(".refusal")).to_contain_text(f"the model '{HOSTILE}' does not exist")
    row = page.locator("a.request-row").first
    expect(row).to_contain_text(HOSTILE)
    expect(row).not_to_contain_text("near/0")
