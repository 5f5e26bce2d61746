"""The pages for operators, on a server with keys, two replicas, an upstream that is dead, and a route."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from helpers.adapter_samples import write_adapter
from helpers.browser import CLIPPED, PageErrors, violations
from helpers.midnight import keep_off_midnight
from helpers.server_process import PATIENCE_S, Server
from penstock.store.resolve import resolve

USER, ADMIN = "user-key", "admin-key"
HOSTILE = "<img src=x onerror=alert(1)>"
REFUSED = ("401 (Unauthorized)", "403 (Forbidden)")


@pytest.fixture(scope="module")
def gateway(chromium: str, tiny: Path, closed_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("gateway")
    file = folder / "penstock.toml"
    write_adapter(folder / "style", resolve(str(tiny)).spec)
    file.write_text(
        f"""
        [serve]
        api_key = "{USER}"
        admin_key = "{ADMIN}"

        [tenants]
        keys = true

        [routing]
        fallback_rounds = 0

        [[models]]
        name = "near"
        model = "{tiny}"
        kv_memory = "20MB"
        replicas = 2
        price = {{ input = 0.1, output = 0.4 }}
        adapters = ["style={folder}/style", "tone={folder}/style"]

        [[models]]
        name = "far"
        upstream = "http://127.0.0.1:{closed_port}/v1"
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


def chat(gateway: Server, model: str, key: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{gateway.api}/chat/completions", json=body, headers=headers, timeout=PATIENCE_S)


def ask(gateway: Server, model: str) -> str:
    """The id of the request."""
    return chat(gateway, model, USER).headers["x-request-id"]


def create_key(page: Page, **fields: str) -> str:
    """With the dialog; the key itself."""
    page.keyboard.press("n")
    dialog = page.get_by_role("dialog", name="New key")
    for label, value in fields.items():
        dialog.get_by_label(label.replace("_", " "), exact=True).fill(value)
    dialog.get_by_label("observe").check()
    page.keyboard.press("Enter")
    secret = page.locator(".secret").inner_text()
    assert secret.startswith("sk-penstock-")
    return secret


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


def test_adapters_are_listed_with_their_base(enter: Callable[..., Page], gateway: Server) -> None:
    page = enter("models", key=ADMIN)
    table = page.get_by_role("region", name="Adapters of near")
    expect(table.locator("tbody tr")).to_have_count(2)
    row = table.locator("tr[data-adapter=style]")
    expect(row).to_contain_text("on disk")  # no engine has needed it so far
    expect(page.locator(".card.model")).to_have_count(3)  # near, far and the route: an adapter has no card of its own
    table.get_by_role("button", name="Remove near@tone").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(table.locator("tbody tr")).to_have_count(1)
    headers = {"authorization": f"Bearer {ADMIN}"}
    listed = httpx.get(f"{gateway.url}/v1/models", headers=headers, timeout=PATIENCE_S).json()["data"]
    assert [one["id"] for one in listed if one["parent"] == "near"] == ["near@style"]


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


def test_a_key_is_shown_once_limited_rotated_and_revoked(
    enter: Callable[..., Page], gateway: Server, watched: PageErrors
) -> None:
    keep_off_midnight()
    page = enter("keys")
    unlock(page)
    expect(page.get_by_role("button", name="New key", exact=True)).to_be_visible()
    key = create_key(page, Tenant="acme", Name=HOSTILE, Requests_per_minute="1", USD_per_day="2.5")
    page.get_by_role("button", name="Copy key").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == key
    page.get_by_role("button", name="Done").click()
    page.get_by_role("link", name=HOSTILE).click()
    assert key not in page.content()
    assert not [text for text in stored(page) if key in text]
    cost = chat(gateway, "near", key).json()["usage"]["cost_usd"]
    assert chat(gateway, "near", key).status_code == 429
    requests = page.get_by_role("meter", name="Requests in the last minute of key")
    expect(requests).to_have_attribute("aria-valuetext", "1 of 1")
    spent = page.get_by_role("meter", name="USD today (UTC) of key")
    expect(spent).to_have_attribute("aria-valuetext", f"${cost:.6f} of $2.50")
    page.get_by_role("button", name="Rotate").click()
    page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    rotated = page.locator(".secret").inner_text()
    assert rotated[:24] == key[:24]
    assert rotated != key
    page.get_by_role("button", name="Done").click()
    assert chat(gateway, "near", key).status_code == 401
    page.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.locator(".detail-head")).to_contain_text("revoked")
    assert chat(gateway, "near", rotated).status_code == 401
    page.get_by_role("button", name="Audit log").click()
    for action in ("key.create", "key.rotate", "key.revoke"):
        expect(page.locator(f"tr[data-action='{action}']").first).to_contain_text("ok")


def test_many_keys_have_pages_and_are_found(enter: Callable[..., Page], gateway: Server) -> None:
    with httpx.Client(base_url=gateway.url, headers={"authorization": f"Bearer {ADMIN}"}, timeout=PATIENCE_S) as http:
        made = [
            http.post("/admin/keys", json={"tenant": "zoo", "name": f"cage {number}"}).json() for number in range(110)
        ]
    assert chat(gateway, "near", made[0]["key"]).status_code == 200
    page = enter("keys", key=ADMIN)
    rows = page.locator("tr[data-key]")
    page.get_by_label("Search keys").fill("cage")
    expect(rows).to_have_count(100)
    page.get_by_role("button", name="Next").click()
    expect(rows).to_have_count(10)
    expect(page.get_by_role("link", name="cage 109")).to_be_visible()
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    page.get_by_role("button", name="Previous").click()
    expect(rows).to_have_count(100)
    page.get_by_label("Search keys").fill(made[105]["id"])
    page.get_by_role("link", name="cage 105").click()
    expect(page.locator(".detail-head")).to_contain_text(made[105]["id"])
    page.goto(f"{gateway.url}/ui/#/usage")
    page.get_by_role("button", name="Key", exact=True).click()
    expect(page.locator(f"tr[data-group='{made[0]['id']}']")).to_contain_text("cage 0")


def test_a_limited_request_says_so_to_its_tenant_alone(
    enter: Callable[..., Page], gateway: Server, watched: PageErrors
) -> None:
    page = enter("keys")
    watched.allowed += ("404 (Not Found)",)
    unlock(page)
    expect(page.get_by_role("button", name="New key", exact=True)).to_be_visible()
    key = create_key(page, Tenant="small", Name="one", Tokens_per_minute="30")
    page.get_by_role("button", name="Done").click()
    name = next(filter(None, (_refused(gateway, key) for _ in range(10))))
    page = enter(f"requests/{name}", key=key)
    expect(page.locator(".refusal")).to_contain_text("tokens_per_minute")
    expect(page.locator(".refusal")).to_contain_text("429 · rate_limit_exceeded")
    expect(page.locator("a.request-row", has_text="rejected").first).to_contain_text("rate limit")
    page = enter(f"requests/{name}")
    expect(page.get_by_role("alert")).to_contain_text("is not recorded")


def _refused(gateway: Server, key: str) -> str | None:
    answer = chat(gateway, "near", key)
    return answer.headers["x-request-id"] if answer.status_code == 429 else None


def test_usage_adds_up_and_is_the_tenants_own(enter: Callable[..., Page], gateway: Server) -> None:
    keep_off_midnight()
    for key in (USER, ADMIN):
        assert chat(gateway, "near", key).status_code == 200
    page = enter("usage")
    rows = page.locator("tr[data-group]")
    expect(rows).to_have_count(1)  # the user's tenant
    page.get_by_role("button", name="All tenants").click()
    unlock(page)
    expect(rows.nth(1)).to_be_visible()
    page.get_by_role("button", name="Model", exact=True).click()
    expect(page.locator("tr[data-group=near]")).to_be_visible()
    headers = {"authorization": f"Bearer {ADMIN}"}
    report = httpx.get(f"{gateway.url}/usage?group_by=day,model", headers=headers, timeout=PATIENCE_S)
    total = report.json()["total"]
    cells = page.locator("tfoot td").all_inner_texts()
    assert cells[0] == f"{total['requests']:,}"
    assert cells[1] == f"{total['input_tokens']:,}"
    with page.expect_download() as caught:
        page.get_by_role("button", name="CSV").click()
    text = httpx.get(f"{gateway.url}/usage?group_by=day,model&format=csv", headers=headers, timeout=PATIENCE_S).text
    assert Path(caught.value.path()).read_bytes().decode() == text
    assert not [text for text in stored(page) if ADMIN in text]


# Texts on canvases that begin left of them, so that their first characters are cut off.
CUT_LABELS = """
window.cutLabels = [];
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, ...rest) {
  const share = { right: 1, end: 1, center: 0.5 }[this.textAlign] ?? 0;
  const { b: turned, e: left } = this.getTransform();
  if (turned === 0 && left + x - share * this.measureText(text).width < -0.5) cutLabels.push(text);
  return fillText.call(this, text, x, ...rest);
};
"""


def test_labels_of_small_costs_are_whole(enter: Callable[..., Page], gateway: Server) -> None:
    assert chat(gateway, "near", USER).status_code == 200

    def without_cost(route: Route) -> None:
        answer = route.fetch()
        report = answer.json()
        for one in (*report["data"], report["total"]):
            one["cost_usd"] = one["cache_savings_usd"] = 0.0
        route.fulfill(response=answer, json=report)

    page = enter("usage")
    page.add_init_script(CUT_LABELS)
    page.route("**/usage?*", without_cost)
    page.reload()
    expect(page.locator(".chart canvas").first).to_be_visible()
    expect(page.locator(".legend", has_text="$0.00").first).to_be_visible()
    assert page.evaluate("cutLabels") == []


def test_pages_for_operators_are_accessible_and_fit_a_phone(enter: Callable[..., Page], gateway: Server) -> None:
    page = enter("keys", key=ADMIN)
    expect(page.get_by_role("button", name="New key", exact=True)).to_be_visible()
    create_key(page, Tenant="fit", Tokens_per_minute="100000")
    page.get_by_role("button", name="Done").click()
    page.keyboard.press("n")
    expect(page.get_by_label("Tenant", exact=True)).to_be_focused()
    assert violations(page) == []
    page.set_viewport_size({"width": 280, "height": 720})
    assert page.evaluate("document.querySelector('dialog').scrollWidth <= document.querySelector('dialog').clientWidth")
    page.keyboard.press("Escape")
    for place, ready in (("models", "tr[data-deployment]"), ("usage", ".stats"), ("keys", ".keys-table")):
        page.goto(f"{gateway.url}/ui/#/{place}")
        page.wait_for_selector(ready)
        assert page.evaluate(CLIPPED) == []
        assert page.evaluate("document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth")
        page.set_viewport_size({"width": 1280, "height": 900})
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            assert violations(page) == []
        page.set_viewport_size({"width": 280, "height": 720})
