"""The Playground on a real server: streaming, stopping, branching, and what hostile text does (nothing)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from helpers.browser import PageErrors
from helpers.scripted_chat import answer_with, text_stream
from helpers.server_process import Server, until
from helpers.tiny_models import ENDLESS_TOKENS

Visit = Callable[..., Page]

# The lengths an answer had, each time it changed.
GROWTH = """() => {
  window.lengths = [];
  new MutationObserver(() => {
    const answer = document.querySelector("article.answer .markdown");
    if (answer && window.lengths.at(-1) !== answer.textContent.length) window.lengths.push(answer.textContent.length);
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


def ask(page: Page, text: str, **numbers: float) -> None:
    page.evaluate(
        "numbers => sessionStorage.setItem('penstock-playground', JSON.stringify({numbers, ignoreEos: true}))", numbers
    )
    page.reload()
    page.wait_for_selector("[data-state=live]", state="attached")
    page.evaluate(GROWTH)
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def ended(page: Page) -> None:
    expect(page.locator("[data-figure=end]").last).to_be_visible()


def test_an_answer_appears_token_by_token(visit: Visit, server: Server) -> None:
    for tokens in (2000, 20_000, 80_000):  # more where the machine is too busy to draw while they come
        page = visit("playground")
        ask(page, "Hello", max_tokens=tokens, seed=1)
        ended(page)
        lengths = page.evaluate("window.lengths")
        if len(lengths) >= 4:
            break
    assert len(lengths) >= 4, "the answer came in one piece"
    assert lengths == sorted(lengths)
    expect(page.locator("[data-figure=output]")).to_have_text(f"{tokens:,}")
    expect(page.locator("[data-figure=end]")).to_have_text("length")
    expect(page.locator("[data-figure=prompt]")).to_contain_text("cached")
    expect(page.locator("[data-figure=ttft]")).to_contain_text("s")


def test_stop_cancels_in_the_engine(visit: Visit, server: Server) -> None:
    page = visit("playground")
    ask(page, "Never end", max_tokens=ENDLESS_TOKENS)
    until(lambda: not server.idle(), "the request reaching the engine")
    page.wait_for_function("() => window.lengths.length > 2")
    page.get_by_label("Stop", exact=True).click()
    expect(page.locator("[data-figure=end]")).to_have_text("stopped")
    until(server.idle, "the engine being idle after a stop")
    made = int(page.locator("[data-figure=output]").inner_text().replace(",", ""))
    assert made < ENDLESS_TOKENS
    page.get_by_label("Your message").fill("still there")
    expect(page.get_by_label("Send", exact=True)).to_be_enabled()


def test_tokens_show_probabilities_and_alternatives_to_branch_to(visit: Visit, server: Server) -> None:
    page = visit("playground")
    ask(page, "Branch", max_tokens=30, temperature=0)
    ended(page)
    page.get_by_role("button", name="Tokens", exact=True).click()
    tokens = page.locator(".token-text .tok")
    expect(tokens).to_have_count(30)
    first = page.locator(".token-text").inner_text()
    # One that ends a character, with another one to choose that does so as well.
    plain = "token => /^[ -~]+$/.test(token.textContent)"
    place = page.evaluate(f"[...document.querySelectorAll('.token-text .tok')].findIndex({plain})")
    tokens.nth(max(place, 0)).click()
    options = page.locator(".token-popover li button")
    expect(options).to_have_count(5)
    shown = [float(text.strip("<%")) for text in page.locator(".token-popover .num").all_inner_texts()]
    assert shown == sorted(shown, reverse=True)
    expect(page.locator(".token-popover li button:disabled")).to_have_count(1)
    page.locator(".token-popover li button:not(:disabled)").first.click()
    expect(page.get_by_text("2 / 2")).to_be_visible()
    ended(page)
    expect(page.locator(".tok.given")).to_have_count(max(place, 0) + 1)
    page.get_by_label("Previous branch").click()
    expect(page.get_by_text("1 / 2")).to_be_visible()
    expect(page.locator(".token-text")).to_have_text(first, use_inner_text=True)


def test_again_and_edit(visit: Visit, server: Server) -> None:
    page = visit("playground")
    ask(page, "The same question, long enough to fill more than one block of the cache", max_tokens=8)
    ended(page)
    page.get_by_label("Regenerate").click()
    expect(page.get_by_text("2 / 2")).to_be_visible()
    ended(page)
    expect(page.locator("[data-figure=prompt] .cached")).to_be_visible()
    page.get_by_label("Edit and resend").click()
    page.get_by_label("Edit message").fill("Another question")
    page.locator(".editing").get_by_role("button", name="Send").click()
    expect(page.locator("article.question .bubble")).to_have_text("Another question")
    ended(page)
    page.get_by_label("Previous branch").click()
    expect(page.locator("article.question .bubble")).to_contain_text("The same question")


def test_escape_closes_one_thing_at_a_time(visit: Visit, server: Server) -> None:
    """The topmost, and only when nothing is open it stops the answer."""
    page = visit("playground", width=1000)
    ask(page, "Never end", max_tokens=ENDLESS_TOKENS)
    until(lambda: not server.idle(), "the request reaching the engine")
    page.get_by_label("Parameters", exact=True).first.click()
    panel = page.get_by_role("complementary", name="Parameters")
    expect(panel).to_be_visible()
    page.get_by_label("Copy as code").press("Enter")  # the drawer lies over it
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(panel).to_be_visible()
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    page.get_by_label("Edit and resend").click()
    expect(page.get_by_label("Edit message")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Edit message")).to_have_count(0)
    expect(page.locator("article.answer")).to_have_attribute("data-state", "streaming")
    page.keyboard.press("Escape")
    expect(page.locator("[data-figure=end]")).to_have_text("stopped")
    page.get_by_role("button", name="Tokens", exact=True).click()  # while they stream, the page draws thousands of them
    page.locator(".token-text .tok").first.click()
    expect(page.locator(".token-popover")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".token-popover")).to_have_count(0)
    until(server.idle, "the engine being idle after a stop")


def corners(page: Page, *selectors: str) -> list[tuple[float, float]]:
    """Of what is found by each, all at one time: the page may be scrolled from one moment to the next."""
    found = page.evaluate(
        """selectors => selectors.map(selector => {
          const { x, y } = document.querySelector(selector).getBoundingClientRect();
          return [x, y];
        })""",
        selectors,
    )
    return [(x, y) for x, y in found]


@pytest.mark.parametrize("width", [700, 800, 1000, 1400])
def test_what_can_be_done_with_a_message_is_in_one_line_below_it(visit: Visit, server: Server, width: int) -> None:
    page = visit("playground", width=width)
    ask(page, "One line", max_tokens=4)
    ended(page)
    (figures, _), (answer, _) = corners(page, ".figures", "article.answer")
    assert figures == answer
    page.get_by_label("Regenerate").click()
    expect(page.get_by_text("2 / 2")).to_be_visible()  # and takes room
    ended(page)
    for labels in (("Edit and resend", "Copy message"), ("Previous branch", "Regenerate", "Copy response")):
        places = corners(page, *(f'[aria-label="{label}"]' for label in labels))
        assert places == sorted(places)
        assert len({top for _, top in places}) == 1


@pytest.mark.parametrize(
    ("kept", "said"),
    [(True, "This server stores prompts and responses (--keep-texts)."), (False, "The server stores no texts.")],
)
def test_it_says_whether_texts_are_kept_once_it_knows(opened: Visit, server: Server, kept: bool, said: str) -> None:
    page = opened(server.url)
    held: list[Route] = []
    page.route("**/observe/facts", lambda route: held.append(route))  # Playwright takes no built-in method
    page.goto(f"{server.url}/ui/#/playground")
    welcome = page.locator(".welcome")
    expect(welcome).to_contain_text(f"Chat with {server.model}")
    until(lambda: page.title() and held, "the question for the facts")  # each look lets Playwright call the route
    expect(welcome).not_to_contain_text("server stores")
    facts = held[0].fetch()
    held[0].fulfill(response=facts, json={**facts.json(), "keep_texts": kept})
    expect(welcome).to_contain_text(said)


def test_presets_and_code_are_what_is_sent(visit: Visit, server: Server) -> None:
    page = visit("playground")
    sent: list[dict[str, object]] = []
    page.on("request", lambda asked: sent.append(asked.post_data_json) if "completions" in asked.url else None)
    ask(page, "Preset", max_tokens=4)
    ended(page)
    page.get_by_role("button", name="Creative").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Regenerate").click()
    expect(page.get_by_text("2 / 2")).to_be_visible()
    ended(page)
    assert "temperature" not in sent[0]
    assert (sent[1]["temperature"], sent[1]["top_p"]) == (1, 0.95)
    assert sent[1]["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Preset"}]
    page.get_by_label("Copy as code").click()
    snippet = page.locator(".snippet").inner_text()
    body = json.loads(snippet[snippet.index("-d '") + 4 : snippet.rindex("'")])
    assert body == {
        name: value for name, value in sent[1].items() if name not in ("stream", "stream_options", "include_timings")
    }
    page.get_by_role("button", name="Python (openai)").click()
    expect(page.locator(".snippet")).to_contain_text("extra_body=")
    compile(page.locator(".snippet").inner_text(), "snippet", "exec")


def test_a_refusal_names_the_field(visit: Visit, server: Server, watched: PageErrors) -> None:
    watched.allowed = ("400 (Bad Request)",)
    page = visit("playground")
    ask(page, "Too many", max_tokens=4, min_tokens=9)
    expect(page.locator("article.answer [role=alert]")).to_contain_text("min_tokens")


DEEP: list[object] = []
for _ in range(500):
    DEEP = [DEEP]
HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'><svg onload='window.hacked=3'>\n\n"
    "[click](javascript:window.hacked=4) [data](data:text/html,<script>window.hacked=5</script>) "
    "![picture](http://tracker.example/pixel.png) <iframe src='http://tracker.example'></iframe>\n\n"
    "[fine](https://example.com/page)\n\n"
    "```html\n<script>window.hacked = 6</script>\n\n| a | b\n|--|\n| <b onclick=x>c\n\n"
    "> > > > **unclosed _emphasis `code\n\n"
    "\u202eright to left override\u202c \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627\n\n"
)


def test_hostile_output_does_nothing(visit: Visit, server: Server) -> None:
    page = visit("playground")
    answers = [
        HOSTILE,
        HOSTILE.replace("```html\n", ""),
        "*_[(" * 25_000,
        "```\n" + "x" * 100_000,
        ("> " * 40 + "a\n") * 1200,
        "```python\n" + "f'{\"\\\\'" * 2000 + "\n```\n\n```html\n<script>window.hacked = 7</script>\n```",  # coloured
        json.dumps({"<img src=x onerror=window.hacked=8>": ["<script>"] * 3000, "deep": DEEP}),  # shown as a tree
    ]
    answer_with(page, [text_stream(answer) for answer in answers])
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    ask(page, "Be evil")
    for count in range(1, 8):
        if count > 1:
            page.get_by_label("Your message").fill("More")
            page.keyboard.press("Enter")
        expect(page.locator("article.answer")).to_have_count(count)
        expect(page.locator("article.answer").last.locator("[data-figure=end]")).to_be_visible()
    assert page.evaluate("window.hacked") is None
    assert dialogs == []
    assert page.locator("article.answer :is(script, img, iframe, svg[onload], [onclick], [onerror])").count() == 0
    links = page.locator("article.answer .markdown a").evaluate_all("links => links.map(link => link.href)")
    assert set(links) == {
        "https://example.com/page",
        "http://tracker.example/pixel.png",
    }  # there to be clicked, never fetched
    assert "<script>window.hacked = 1</script>" in page.locator("article.answer").first.inner_text()
    expect(page.locator(".json-tree")).to_contain_text("<img src=x onerror=window.hacked=8>")
    # Its inner text would be empty while it is out of sight: so long a block is laid out where it is looked at.
    assert (page.locator("article.answer").nth(2).text_content() or "").count("*_[(") == 25_000
    # And the page is as alive as before.
    page.keyboard.press("Escape")
    page.locator("body").click(position={"x": 640, "y": 20})
    page.keyboard.press("4")
    expect(page.get_by_role("heading", name="Batch", exact=True)).to_be_visible()
