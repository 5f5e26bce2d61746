"""The pages that show the engine: what they say is what the server says."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, cast

import httpx
import openai
import pytest
from playwright.sync_api import Page, Route, expect

from helpers.browser import PageErrors, violations
from helpers.server_process import PATIENCE_S, Server, until
from helpers.tiny_models import LONG_CONTEXT
from penstock.flow import FinishReason
from penstock.http.debug.route_docs import KINDS

Visit = Callable[..., Page]
DRAWN = """canvas => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let at = 0; at < data.length; at += 4)
    if (data[at + 3]) colours.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
  return colours.size;
}"""


def colours(page: Page, selector: str) -> int:
    """How many colours a canvas has."""
    found = page.locator(selector).first.evaluate(DRAWN)
    assert isinstance(found, int)
    return found


@pytest.fixture(scope="module")
def busy(server: Server) -> Server:
    """A server that has answered a few questions that begin alike."""
    with server.client() as client:
        for number in range(6):
            client.chat.completions.create(
                model=server.model,
                messages=[
                    {"role": "user", "content": "A beginning that all of these questions share. " * 2 + str(number)}
                ],
                max_tokens=10 + 10 * number,
                extra_body={"ignore_eos": True},
            )
    return server


def get(server: Server, path: str) -> dict[str, object]:
    answer = httpx.get(server.url + path, timeout=PATIENCE_S)
    answer.raise_for_status()
    found: dict[str, object] = answer.json()
    return found


def measured(server: Server) -> tuple[str, float, float]:
    """A request: its name, and how long it took in microseconds, by its client's clock and by the server's."""
    body = {"model": server.model, "prompt": "measure", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with httpx.Client(timeout=PATIENCE_S) as client:
        client.get(f"{server.url}/health")
        began = time.perf_counter()
        with client.stream("POST", f"{server.url}/v1/completions", json=body) as answer:
            answer.read()
        took_us = (time.perf_counter() - began) * 1e6
    name = answer.headers["x-request-id"]
    told_us = until(lambda: get(server, f"/observe/requests/{name}")["e2e_us"], "the end of the request")
    assert isinstance(told_us, int)
    return name, took_us, told_us


def test_a_trace_adds_up_to_what_the_client_measured(visit: Visit, busy: Server) -> None:
    """Where the machine is busy, the client's own share may be large: then another request is looked at."""

    def agreed() -> tuple[str, float] | None:
        named, measured_us, told_us = measured(busy)
        return (named, measured_us) if told_us == pytest.approx(measured_us, rel=0.04) else None

    named, measured_us = until(agreed, "a request that its client and its server measure alike")
    page = visit(f"requests/{named}")
    total = page.locator("tr[data-total]")
    expect(total).to_be_visible()
    page.wait_for_function("() => document.querySelector('tr[data-total]').dataset.e2e !== ''")
    stages = page.locator("tr[data-stage]").evaluate_all(
        "rows => rows.map(row => [row.dataset.stage, Number(row.dataset.us)])"
    )
    added = sum(us for _, us in stages)
    assert added == pytest.approx(int(total.get_attribute("data-e2e") or 0), rel=0.05)
    assert added == pytest.approx(measured_us, rel=0.05)
    assert {"prefill", "decode", "tokenize"} <= {name for name, _ in stages}
    until(lambda: colours(page, ".trace canvas") > 3, "the trace being drawn")
    expect(page.get_by_text("The output reached max_tokens.")).to_be_visible()


def test_the_front_page_shows_the_stages_as_the_server_tells_them(visit: Visit, busy: Server) -> None:
    page = visit("")
    told = get(busy, "/observe/pipeline")
    stages = {one["name"]: one for one in told["stages"]}  # type: ignore[attr-defined]
    expect(page.locator(".stage-box")).to_have_count(len(stages))
    expect(page.locator("[data-stage=tokenize] .stage-figure")).not_to_have_text("–")
    for name, active in told["active"].items():  # type: ignore[attr-defined]
        expect(page.locator(f".stage-box[data-stage={name}]")).to_have_attribute("data-off", str(not active).lower())
    page.locator(".stage-box[data-stage=prefill]").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Prefill", level=2)).to_be_visible()
    expect(page.locator("[data-stage-figures=prefill]")).to_contain_text(
        f"{told['totals']['prefill_tokens']:,}"  # type: ignore[index]
    )
    expect(page.get_by_role("link", name="Open Cache")).to_have_attribute("href", "#/cache")
    until(lambda: colours(page, ".pipeline-diagram canvas") > 1, "the pipes being drawn")
    with busy.client() as client:
        client.completions.create(model=busy.model, prompt="flow", max_tokens=400, extra_body={"ignore_eos": True})
    expect(page.locator(".time-parts")).to_contain_text("Decode")


def test_a_request_is_followed_through_its_stages(visit: Visit, busy: Server) -> None:
    page = visit("pipeline/follow", width=375)
    page.get_by_label("Prompt").fill("<b>follow</b> me")
    page.get_by_label("max_tokens").fill("5")
    page.get_by_role("button", name="Send and follow").click()
    body = page.locator(".follow-body")
    expect(body).to_contain_text('"return_token_ids": true')
    page.keyboard.press("j")
    expect(body.locator("pre")).to_contain_text("<b>follow</b> me")
    shown = get(busy, f"/observe/requests/{page.url.rsplit('/', 1)[1]}")
    (sequence,) = shown["sequences"]  # type: ignore[misc]
    for step, says in {
        "tokens": f"{shown['prompt_tokens']} tokens", "queue": "Waited", "cache": "KV blocks",
        "batch": f"#{sequence['first_step']}", "sample": "Its seed decides", "stream": "data: [DONE]", "end": "Total",
    }.items():  # fmt: skip
        page.locator(f"[data-step={step}]").click()
        expect(body).to_contain_text(says)
        assert page.evaluate("document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth")
    page.set_viewport_size({"width": 1280, "height": 900})
    assert violations(page) == []


def test_the_inside_of_the_model_is_shown_layer_by_layer(visit: Visit, busy: Server, watched: PageErrors) -> None:
    watched.allowed = ("400 (Bad Request)",)
    page = visit("pipeline/inside")
    rows = page.locator(".inside-lens tbody tr")
    expect(rows.first).to_be_visible()
    told = httpx.post(f"{busy.url}/observe/model", json={"prompt": "a <i>b</i>", "layer": 1}, timeout=PATIENCE_S).json()
    page.get_by_label("Prompt").fill("a <i>b</i>")
    page.get_by_role("button", name="Look inside").click()
    expect(page.locator(".follow-tokens button")).to_have_count(len(told["tokens"]))
    expect(rows).to_have_count(told["num_layers"] + 1)
    until(lambda: colours(page, ".inside-stream canvas") > 3, "the residual stream being drawn")
    with page.expect_response("**/observe/model"):
        page.get_by_label("Layer 1 of").press("ArrowRight")
    expect(page.get_by_text(f"Layer 2 of {told['num_layers']}")).to_be_visible()
    page.get_by_role("group", name="Head").get_by_role("button").nth(1).click()
    head = told["attention"][1][-1]
    expect(page.locator("[data-attends]")).to_contain_text(f"{100 * max(head):.1f}%")
    assert violations(page) == []
    page.set_viewport_size({"width": 360, "height": 720})
    assert page.evaluate("document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth")
    page.get_by_label("Prompt").fill("word " * 79)
    page.get_by_role("button", name="Look inside").click()
    expect(page.get_by_role("alert")).to_contain_text("give 1 to 64")


def test_why_measures_here_and_marks_what_is_computed(visit: Visit, busy: Server) -> None:
    page = visit("pipeline/why", width=360, height=720)
    page.get_by_role("button", name="Measure here").click()
    rows = page.locator(".why-measured tr[data-tokens]")
    expect(rows).to_have_count(7)
    expect(page.locator(".why-scaling tr[data-degree='8']")).to_be_visible()
    told = httpx.post(f"{busy.url}/plan", json={"model": "llama-3.1-70b", "hardware": "h100-sxm"}, timeout=PATIENCE_S)
    shown = page.locator(".why-scaling tr[data-degree='8'] td").nth(4)
    degree = next(one for one in told.json()["parallel"] if one["degree"] == 8)
    expect(shown).to_have_text(f"{degree['decode_s'] * 1e3:.2f} ms")
    page.get_by_label("Of those cached").press("End")
    expect(page.get_by_text("1 prefill step, 1 tokens computed.")).to_be_visible()
    page.get_by_role("button", name="Next slice").click()
    expect(page.get_by_text("1 of 4 slices")).to_be_visible()
    assert page.evaluate("document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth")
    assert page.locator(".card header, .card h3").filter(has_text="Computed").count() >= 4
    page.set_viewport_size({"width": 1280, "height": 900})
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page) == []


def test_the_list_is_live_and_filters(visit: Visit, busy: Server) -> None:
    page = visit("requests")
    rows = page.locator("a.request-row")
    expect(rows.first).to_be_visible()
    offered = "options => options.map(option => option.value).filter(Boolean)"
    assert set(page.locator("select[aria-label=Kind] option").evaluate_all(offered)) == set(KINDS)
    assert set(page.locator("select[aria-label=Finish] option").evaluate_all(offered)) == {
        *FinishReason,
        "rejected",
    }
    with busy.client() as client:
        answer = client.completions.create(model=busy.model, prompt="live", max_tokens=3)
    expect(page.locator("a.request-row", has_text="completion").first).to_be_visible()
    page.get_by_label("Kind").select_option("completion")
    page.wait_for_function(
        "() => [...document.querySelectorAll('a.request-row')].every(row => row.textContent.includes('completion'))"
    )
    with page.expect_response(lambda answered: "&q=" in answered.url):  # the list changes once more: no time to click
        page.get_by_label("Search requests").fill(answer.id.removeprefix("cmpl-"))
    expect(rows).to_have_count(1)
    rows.click()
    expect(page.get_by_role("heading", name="Latency by stage")).to_be_visible()
    page.get_by_label("Search requests").fill("no such thing")
    expect(page.get_by_text("No requests match the filters")).to_be_visible()


def test_the_bar_of_a_row_shows_only_what_happened(visit: Visit, busy: Server) -> None:
    """One that was refused has not been decoded, and neither has an embedding."""
    with busy.client() as client:
        client.embeddings.create(model=busy.model, input="no output")
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model=busy.model, prompt="refused", temperature=9)
    page = visit("requests")
    for kind, shown in (("rejected", ["intake"]), ("embedding", ["wait", "prefill"])):
        bar = page.locator("a.request-row", has_text=kind).first.locator(".split-bar i")
        expect(bar.first).to_be_attached()
        drawn = "parts => parts.filter(part => part.style.width !== '0%').map(part => part.dataset.colour)"
        assert set(bar.evaluate_all(drawn)) <= set(shown)


def test_the_timeline_draws_steps_as_they_happen(visit: Visit, busy: Server) -> None:
    page = visit("batch")
    canvas = ".timeline-scroll canvas"
    page.wait_for_function(
        f"() => document.querySelector('.timeline').dataset.empty === 'false' && document.querySelector('{canvas}')"
    )
    until(lambda: colours(page, canvas) > 3, "the timeline being drawn")
    before = page.locator(".overview figcaption").inner_text()
    with busy.client() as client:
        client.completions.create(model=busy.model, prompt="more steps", max_tokens=20, extra_body={"ignore_eos": True})
    page.wait_for_function("before => document.querySelector('.overview figcaption').innerText !== before", arg=before)

    def pointed() -> bool:
        """Steps may still move on beneath the pointer, which then has to be moved again."""
        for x in (899, 900):
            page.locator(canvas).hover(position={"x": x, "y": 90})
        return page.locator(".tip").count() == 1

    until(pointed, "a step beneath the pointer")
    expect(page.locator(".tip")).to_contain_text("Step #")
    expect(page.locator(".tip")).to_contain_text("batch")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    page.get_by_label("Zoom in").click()
    until(lambda: colours(page, canvas) > 3, "the timeline being drawn anew")
    picture = f"() => document.querySelector('{canvas}').toDataURL()"
    by_step = page.evaluate(picture)
    page.get_by_role("button", name="By time").click()
    expect(page.get_by_role("img", name="Timeline of the engine's steps, by time")).to_be_visible()
    until(lambda: page.evaluate(picture) != by_step and colours(page, canvas) > 3, "the same steps by time")
    until(pointed, "a step beneath the pointer")
    expect(page.locator(".tip")).to_contain_text("Step #")


def test_the_replay_is_the_servers_and_says_that_it_is_computed(visit: Visit, busy: Server) -> None:
    until(busy.idle, "the engine being idle")  # what ends meanwhile would be in one answer and not in the other
    page = visit("batch")
    replay = get(busy, "/observe/replay?limit=64&batch=8")
    expect(page.get_by_text("Computed replay")).to_be_visible()
    for kind in ("static", "continuous"):
        run = replay[kind]
        assert isinstance(run, dict)
        caption = page.locator(f"[data-run={kind}] figcaption")
        expect(caption).to_contain_text("tok/s")
        shown = float(re.search(r"([\d,.]+) tok/s", caption.inner_text())[1].replace(",", ""))  # type: ignore[index]
        assert shown == pytest.approx(run["tokens_per_s"], abs=0.0501), "a half may be rounded up or down"
        until(lambda kind=kind: colours(page, f"[data-run={kind}] canvas") > 2, "the replay being drawn")


def test_the_page_map_agrees_with_the_engines_counters(visit: Visit, busy: Server) -> None:
    until(busy.idle, "the engine being idle")
    page = visit("cache")
    page.wait_for_selector("[data-state=cached]")
    metrics = busy.metrics()

    def counted(state: str) -> int:
        return int(page.locator(f"[data-state={state}]").first.get_attribute("data-count") or -1)

    def agrees() -> bool:
        kept = {name: value for name, value in metrics.items() if name.startswith("penstock_kv_blocks{")}
        of = lambda state: sum(value for name, value in kept.items() if f"state={state}" in name)  # noqa: E731
        held = counted("in-use") + counted("shared")
        return (counted("free"), counted("cached"), held) == (of("free"), of("cached"), of("held"))

    until(agrees, "the map and the counters agreeing")
    assert counted("cached") > 0
    expect(page.get_by_role("columnheader", name="Most hits")).to_be_visible()
    until(lambda: colours(page, ".page-map") >= 2, "the map being drawn")


def test_the_explainer_finds_the_token_at_which_a_prompt_diverges(visit: Visit, busy: Server) -> None:
    page = visit("cache")
    page.get_by_role("button", name="A prompt").click()
    prompt = "A beginning that all of these questions share. A beginning that all of THEM share"
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_role("button", name="Explain", exact=True).click()
    told = httpx.post(
        f"{busy.url}/observe/cache/explain",
        json={"messages": [{"role": "user", "content": prompt}]},
        timeout=PATIENCE_S,
    ).json()
    assert told["reason"] == "diverged"
    expect(page.locator(".explanation p").first).to_have_text(told["message"])
    expect(page.locator(".diverged mark")).to_have_text(told["text"]["at"])
    assert told["text"]["at"].startswith("T")
    page.get_by_role("button", name="A request").click()
    page.get_by_label("Request", exact=True).select_option(index=1)
    expect(page.locator(".found h3")).to_contain_text("request #")


def test_the_lab_shows_the_samplers_own_numbers(visit: Visit, server: Server) -> None:
    page = visit("lab")
    of_it = lambda answer: "observe/lab" in answer.url and "numbers" in (answer.request.post_data or "")  # noqa: E731
    with page.expect_response(of_it) as caught:
        page.get_by_label("Prompt", exact=True).fill("numbers")
    asked, told = caught.value.request.post_data_json, caught.value.json()
    assert asked["prompt"] == "numbers"
    expect(page.locator(f"[data-drawn='{told['drawn']['id']}']")).to_be_attached()
    page.wait_for_function(
        "first => document.querySelector('tr[data-token]').dataset.token === first", arg=str(told["tokens"][0]["id"])
    )
    for stage in told["stages"]:
        if not stage["on"] and stage["name"] != "model":
            continue
        cells = page.locator(f"td[data-stage={stage['name']}]").evaluate_all(
            "cells => cells.map(cell => Number(cell.dataset.prob))"
        )
        assert cells == stage["probs"]
        head = page.locator(f"th[data-stage={stage['name']}]")
        assert int(head.get_attribute("data-kept") or -1) == stage["kept"]
    # The numbers are the API's, too: the model's probabilities of the first output token.
    with server.client() as client:
        answer = client.completions.create(
            model=server.model, prompt="numbers", max_tokens=1, logprobs=5, temperature=0
        )
    top = answer.choices[0].logprobs.top_logprobs[0]
    model = next(stage for stage in told["stages"] if stage["name"] == "model")
    assert model["probs"][0] == pytest.approx(2.718281828 ** max(top.values()), rel=1e-3)


def test_the_lab_shows_what_a_constraint_allows(visit: Visit, server: Server) -> None:
    page = visit("lab")
    page.get_by_label("Constraint", exact=True).select_option("Choice")
    page.get_by_label("Choices, one per line").fill("xy\nxz")
    take = page.get_by_role("button", name="Accept")
    column = page.locator("th[data-stage=constraint]")
    for kept in ("1", "2"):
        expect(column).to_have_attribute("data-kept", kept)
        expect(take).to_be_enabled()
        take.click()
    expect(page.get_by_text("The constrained output is complete")).to_be_visible()
    page.get_by_label("Constraint", exact=True).select_option("JSON schema")
    page.get_by_label("Schema", exact=True).fill("{")
    expect(page.get_by_role("alert")).to_contain_text("not valid JSON")
    page.get_by_label("Constraint", exact=True).select_option("None")
    expect(column).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_late_answer_of_the_lab_does_not_hide_that_a_schema_is_invalid(visit: Visit, server: Server) -> None:
    page = visit("lab")
    expect(page.get_by_role("button", name="Accept")).to_be_enabled()
    held: list[Route] = []
    page.route("**/observe/lab", lambda route: held.append(route))
    page.get_by_label("Constraint", exact=True).select_option("JSON schema")
    until(lambda: page.title() and held, "the question with the schema")
    page.get_by_label("Schema", exact=True).fill("{")
    expect(page.get_by_role("alert")).to_contain_text("not valid JSON")
    for route in held:
        route.continue_()
    expect(page.get_by_role("button", name="Accept")).to_be_enabled()  # no longer waiting for the answer
    expect(page.get_by_role("alert")).to_contain_text("not valid JSON")


def test_the_lab_walks_and_changes_branches(visit: Visit, server: Server) -> None:
    page = visit("lab")
    take = page.get_by_role("button", name="Accept")
    expect(take).to_be_enabled()
    for count in (1, 2, 3):
        take.click()
        expect(page.locator(".path .step")).to_have_count(count)
        expect(take).to_be_enabled()
    page.get_by_role("button", name="Back", exact=True).click()
    expect(page.locator(".path .step")).to_have_count(2)
    other = page.locator("tr[data-drawn=false][data-out=false] .choose").first
    if other.count():
        other.click()
        expect(page.locator(".path .step")).to_have_count(3)
    page.get_by_label("Temperature", exact=True).fill("0")
    expect(page.locator("th[data-stage=temperature]")).to_be_visible()


def test_the_planner_plans_and_counts(visit: Visit, server: Server) -> None:
    page = visit("planner")
    expect(page.locator("[data-plan=kv_bytes_per_token]")).to_be_visible()
    expect(page.get_by_label("Prompt tokens")).to_have_value("1024")  # defaults are values
    page.get_by_label("Model", exact=True).select_option("llama-3.1-70b")
    page.get_by_label("Hardware", exact=True).select_option("h100-sxm")
    expect(page.get_by_label("KV cache", exact=True)).to_have_value("bfloat16")
    page.get_by_label("Prompt tokens").fill("3840")
    # 80 layers, 8 KV heads of 128, 16 bit, 4,096 tokens.
    expect(page.locator(".formula")).to_contain_text("80 layers × 8 KV heads × 128 (head dim) × 2 bytes = 327,680")
    expect(page.get_by_text("1.25 GiB").first).to_be_visible()
    expect(page.locator("[data-plan=kv_all]")).to_have_text("10.0 GiB")  # of eight sequences
    expect(page.get_by_text("Does not fit: ")).to_be_visible()
    page.get_by_role("button", name="int4", exact=True).click()
    expect(page.get_by_label("KV cache", exact=True)).to_have_value("int4")
    expect(page.locator("[role=note]")).to_have_count(0)
    page.get_by_label("KV cache", exact=True).select_option("float16,int4")
    expect(page.locator("[role=note]")).to_contain_text("A KV cache in float16,int4 on a GPU")
    page.get_by_role("button", name="Defaults").click()
    expect(page.locator("[role=note]")).to_have_count(0)
    expect(page.get_by_label("Prompt tokens")).to_have_value("1024")


def test_the_planner_says_that_it_computes(visit: Visit, server: Server) -> None:
    page = visit("pipeline")
    page.route("**/plan", lambda route: None)  # no answer yet
    page.goto(f"{server.url}/ui/#/planner")
    expect(page.get_by_text("Computing the plan")).to_be_visible()


def test_the_planner_calculates_latency_hardware_and_cost(visit: Visit, server: Server) -> None:
    page = visit("planner/speed")
    page.get_by_label("TTFT (ms)").fill("500")
    page.get_by_label("TPS, one request").fill("50")
    page.locator(".calculator").get_by_label("Output tokens").fill("100")
    page.get_by_label("Concurrency").fill("10")
    expect(page.locator("[data-plan=latency]")).to_have_text("2.50 s")  # 0.5 + 100 / 50
    expect(page.locator("[data-plan=throughput]")).to_have_text("5 requests/s")  # 10 * 50 / 100
    page.get_by_role("link", name="Hardware", exact=True).click()
    page.get_by_label("Model", exact=True).select_option("llama-3.1-8b")
    page.get_by_label("Hardware", exact=True).select_option("a100-80gb")
    fits = page.locator("[data-option=fits] td")
    expect(fits.nth(1)).to_have_text("fits")  # an H100
    page.get_by_label("Hardware of option 3").select_option("t4")
    expect(fits.nth(3)).to_contain_text("missing")  # 16 bit in 16 GB
    page.get_by_label("Devices", exact=True).fill("2")  # the third of 1, 2, 4, 8, 16
    expect(page.locator("[data-plan=bandwidth]")).to_contain_text("7.42 TiB/s")  # 4 * 2.039 TB/s
    page.get_by_role("link", name="Load and cost").click()
    page.get_by_label("API price, 1M input").fill("1")
    page.get_by_label("API price, 1M output").fill("1")
    expect(page.locator("[data-plan=api_blended]")).to_have_text("1.00")
    page.get_by_role("link", name="Speculation", exact=True).click()
    expect(page.get_by_role("row", name="0%", exact=False).first.locator("td").nth(1)).to_have_attribute(
        "data-heat", re.compile("^-")
    )


def test_the_planner_counts_the_tokens_of_a_prompt(visit: Visit, server: Server, watched: PageErrors) -> None:
    page = visit("planner/tokens")
    free = page.locator("[data-plan=counts_free]")
    expect(free).to_have_text(f"{LONG_CONTEXT - 3800:,}")
    page.get_by_label("Documents (tokens)").fill("3000")
    expect(free).to_have_text(f"{LONG_CONTEXT - 4800:,}")
    page.get_by_label("Text to count").fill("count me")
    counted = httpx.post(
        f"{server.url}/tokenize", json={"prompt": "count me", "add_special_tokens": False}, timeout=PATIENCE_S
    )
    expect(page.locator("[data-plan=count]")).to_have_text(f"{counted.json()['count']} tokens")
    page.get_by_label("Documents", exact=True).fill("first document\n---\nsecond document")
    page.wait_for_function("() => Number(document.querySelector('[data-part=documents]')?.dataset.tokens) > 0")
    parts = page.locator("[data-part]").evaluate_all(
        "parts => parts.reduce((all, part) => all + Number(part.dataset.tokens), 0)"
    )
    expect(page.get_by_text("tokens free")).to_contain_text(f"{LONG_CONTEXT - parts:,} of {LONG_CONTEXT:,}")
    page.get_by_text("Context assembly", exact=True).click()
    expect(page.locator("tr[data-kind=document][data-action=kept]")).to_have_count(2)
    page.get_by_label("Budget of documents").fill("80")
    expect(page.locator("tr[data-kind=document][data-action=dropped]")).to_have_count(1)
    page.get_by_label("History policy").select_option("keep_all")
    page.get_by_label("Ranking").select_option("given")
    expect(page.locator("tr[data-kind=document][data-action=kept]")).to_contain_text("1")
    watched.allowed = ("400 (Bad Request)",)
    page.get_by_label("Total budget").fill("20")
    expect(page.get_by_text("must be less than budget.total, which is 20")).to_be_visible()
    expect(page.get_by_label("Parts of the prompt")).to_have_count(0)  # of the input before


def test_a_request_shows_how_its_prompt_was_assembled(visit: Visit, server: Server) -> None:
    body = {
        "messages": [{"role": "user", "content": "What do valves do?"}], "max_tokens": 2,
        "documents": ["Pumps move water.", "Valves close."],
        "context": {"rank": "reranker", "budget": {"documents": 80}},
    }  # fmt: skip
    made = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE_S).json()
    shown = get(server, f"/observe/requests/{made['id']}")["context"]
    page = visit(f"requests/{made['id']}")
    rows = page.get_by_label("Parts of the prompt").locator("tbody tr")
    expect(rows).to_have_count(len(shown["parts"]))
    expect(rows.nth(0)).to_contain_text(shown["parts"][0]["why"])
    expect(page.get_by_text("reranker by")).to_contain_text("2 requests")


def test_the_planner_shows_what_was_measured_in_figures_to_be_read(visit: Visit, busy: Server) -> None:
    page = visit("planner/speed")
    row = page.get_by_role("row", name="KV cache, per token")
    # What a token takes is a mean, and seldom a whole number of bytes.
    expect(row.get_by_role("cell").nth(2)).to_have_text(re.compile(r"^\d+ B$"))


def test_the_dashboard_shows_curves_and_objectives(visit: Visit, busy: Server) -> None:
    page = visit("dashboard")
    until(lambda: page.locator(".chart canvas").count() >= 9, "the curves being there")
    until(lambda: colours(page, ".chart canvas") > 2, "the curves being drawn")
    named = set(page.locator(".chart h2").all_inner_texts())
    assert {"TTFT", "Inter-token latency", "Request latency", "Queue time", "Preemptions and errors", "CPU"} <= named
    names = [one["name"] for one in get(busy, "/slo")["objectives"]]
    assert {"ttft_p95", "tokens_per_s_p50", "error_rate", "kv_use", "gpu_memory", "queue_depth"} <= set(names)
    expect(page.locator("tr[data-objective=kv_use]")).to_be_hidden()  # no target is set: folded
    page.get_by_text("Objectives (SLO)", exact=True).click()
    expect(page.locator("tr[data-objective]")).to_have_count(len(names))
    objective = next(one for one in get(busy, "/slo")["objectives"] if one["name"] == "kv_use")  # type: ignore[index]
    expect(page.locator("tr[data-objective=kv_use]")).to_contain_text(objective["title"])
    page.get_by_role("button", name="Log", exact=True).click()
    until(lambda: colours(page, ".chart canvas") > 2, "the curves being drawn anew")


def test_a_moment_of_the_dashboard_leads_to_its_requests(visit: Visit, busy: Server) -> None:
    """With the pointer or the keyboard; the crosshair is the same in all charts."""
    page = visit("dashboard")
    charts = page.locator(".chart .pickable")
    until(lambda: page.locator(".chart canvas").count() >= 9, "the curves being there")
    listed = until(lambda: get(busy, "/observe/history?seconds=900&points=300"), "points")
    ended = next(place for place, us in enumerate(listed["e2e_us_p50"]) if us is not None)  # type: ignore[arg-type]
    charts.first.focus()
    for _ in range(len(listed["t"]) + 2 - ended):  # type: ignore[arg-type]
        page.keyboard.press("ArrowLeft")
    lines = page.locator(".u-cursor-x").evaluate_all("lines => new Set(lines.map(line => line.style.transform)).size")
    assert lines == 1
    page.keyboard.press("Enter")
    expect(page.get_by_text("Open between")).to_be_visible()
    page.get_by_role("button", name="Show all times").click()
    expect(page.get_by_text("Open between")).to_have_count(0)
    expect(page.locator("a.request-row").first).to_be_visible()


def test_the_list_of_requests_sorts_and_shows_how_prompts_begin(visit: Visit, busy: Server) -> None:
    page = visit("requests")
    rows = page.locator("a.request-row")
    page.get_by_label("Kind").select_option("chat")
    page.get_by_label("Search requests").fill("of these questions share")  # others may have come since
    expect(rows.filter(has_text="A beginning that all of these questions share.").first).to_be_visible()
    tokens = "rows => rows.map(row => parseInt(row.children[2].firstChild.textContent.replaceAll(',', '')))"
    for sign in (-1, 1):
        page.get_by_role("button", name="Output", exact=True).click()
        until(
            lambda sign=sign: (found := rows.evaluate_all(tokens)) == sorted(found, key=lambda one: sign * one),
            "the rows being in order",
        )
    # All bars share one time scale: as wide as their requests were long, except those that are cut.
    page.get_by_role("button", name="Total", exact=True).click()
    drawn = """rows => rows.map(row => {
        const bar = row.querySelector(".split-bar");
        const width = [...bar.children].reduce((all, part) => all + parseFloat(part.style.width), 0);
        return [parseInt(row.querySelector("b").textContent.slice(1)), width, bar.dataset.cut === "true"];
    })"""

    def in_scale() -> bool:
        listed = cast(list[dict[str, Any]], get(busy, "/observe/requests?limit=1000")["requests"])
        took_us = {one["number"]: one["e2e_us"] for one in listed}
        bars = rows.evaluate_all(drawn)
        widths = [width for _, width, _ in bars]
        scales = [width / took_us[number] for number, width, cut in bars if not cut]
        return widths == sorted(widths, reverse=True) and len(scales) > 1 and max(scales) < 1.01 * min(scales)

    until(in_scale, "bars as wide as their requests were long")
