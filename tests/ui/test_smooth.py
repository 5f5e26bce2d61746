"""That nothing makes the interface stutter: 64 requests at once, 50,000 recorded steps, no task over 100 ms.

Time is measured, so it is not part of the ordinary run: `pytest -m smooth`, on a machine that does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page

from helpers.browser import DIST
from helpers.synthetic_server import SyntheticServer

pytestmark = pytest.mark.smooth
LONGEST_MS = 100
WATCH = """
window.longTasks = [];
const noted = task => [Math.round(task.duration), Math.round(task.startTime)];
new PerformanceObserver(list => window.longTasks.push(...list.getEntries().map(noted)))
  .observe({ type: "longtask", buffered: true });
"""


@pytest.fixture(scope="module")
def day() -> Iterator[SyntheticServer]:
    with SyntheticServer(DIST) as server:
        yield server


def pipeline(page: Page) -> None:
    page.wait_for_selector(".time-parts")
    page.wait_for_timeout(4000)  # dots move at full rate
    for stage in page.locator(".stage-box").all():
        stage.click()
        page.wait_for_timeout(100)


def requests(page: Page) -> None:
    box = page.locator(".virtual")
    for _ in range(30):
        box.evaluate("box => box.scrollBy(0, 900)")
        page.wait_for_timeout(30)
    page.locator("a.request-row").first.click()
    page.wait_for_selector(".stages")
    for _ in range(15):
        page.keyboard.press("j")
        page.wait_for_timeout(60)


def batch(page: Page) -> None:
    page.wait_for_selector(".timeline[data-empty=false]")
    page.wait_for_timeout(3000)  # following, four times a second
    for key in ("-", "-", "-", "+", "+", "-", "-", "ArrowLeft", "ArrowLeft", "ArrowLeft", "-", "-"):
        page.keyboard.press(key)
        page.wait_for_timeout(200)
    strip = page.locator(".overview canvas")
    width = strip.bounding_box()["width"]  # type: ignore[index]
    for share in (0.1, 0.5, 0.9, 0.3):
        strip.click(position={"x": width * share, "y": 10})
        page.wait_for_timeout(400)
    for place in range(20):
        page.locator(".timeline-scroll canvas").hover(position={"x": 200 + 20 * place, "y": 200})


def cache(page: Page) -> None:
    page.wait_for_selector(".page-map")
    for place in range(20):
        page.locator(".page-map").hover(position={"x": 10 + 30 * place, "y": 100})
        page.wait_for_timeout(100)
    page.get_by_role("button", name="By request").click()
    page.wait_for_timeout(2500)


def dashboard(page: Page) -> None:
    page.wait_for_selector(".chart canvas")
    page.wait_for_timeout(4000)


@pytest.mark.parametrize("use", [pipeline, requests, batch, cache, dashboard], ids=lambda use: use.__name__)
def test_no_task_is_long(opened: Callable[..., Page], day: SyntheticServer, use: Callable[[Page], None]) -> None:
    page = opened(day.url)
    page.add_init_script(WATCH)
    page.goto(f"{day.url}/ui/#/{use.__name__}")
    page.wait_for_selector("[data-state=live]", state="attached")
    use(page)
    tasks = page.evaluate("window.longTasks")
    print(f"{use.__name__}: tasks over 50 ms, as [ms, begun at ms]: {tasks}")
    assert [task for task in tasks if task[0] > LONGEST_MS] == []
