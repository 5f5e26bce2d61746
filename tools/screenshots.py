"""Takes the screenshots in docs/images anew: a server of the default model under a small load, in Chromium.

    python tools/screenshots.py [FOLDER]     default: docs/images

The page of keys (ui-keys.png) needs a server with keys and a login, and is not taken.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PENSTOCK = Path(sys.executable).with_name("penstock")
PAGES = ("pipeline", "playground", "requests", "batch", "cache", "lab", "dashboard", "planner", "models", "usage")
SLOW_MS = {"lab": 8000, "planner": 5000}  # pages that ask the engine first
SIZE = {"width": 1280, "height": 800}
LENGTHS = ("--input-tokens", "40:300", "--output-tokens", "20:120", "--shared-tokens", "32")
PROMPT = "Why is the sky blue? Answer in one sentence."


def main(folder: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("there is no Chromium on the PATH")
    with tempfile.TemporaryDirectory() as data:
        log = Path(data) / "log"
        with log.open("wb") as output:
            options = (
                "--port",
                "0",
                "--keep-texts",
                "--ledger",
                "--data-dir",
                data,
                "--kv-memory",
                "150MB",
                "--speculate",
                "lookup",
            )
            server = subprocess.Popen([PENSTOCK, "serve", "smollm2", *options], stderr=output)
        try:
            url = _address(log, server)
            load = subprocess.Popen(
                [PENSTOCK, "bench", "--server", url, "--rate", "1", "--requests", "2000", *LENGTHS],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                with sync_playwright() as playwright:
                    browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                    take(browser, url, folder)
            finally:
                load.kill()
                load.wait()
        finally:
            server.terminate()
            server.wait(60)


def take(browser: Browser, url: str, folder: Path) -> None:
    page = browser.new_page(viewport=SIZE, color_scheme="light")
    time.sleep(10)  # some requests, for the curves
    for name in PAGES:
        page.goto(f"{url}/ui/#/{name}")
        page.wait_for_timeout(SLOW_MS.get(name, 2500))
        if name == "playground":
            _ask(page)
        if name == "requests":
            page.locator("a.request-row").first.click()
            page.wait_for_timeout(1500)
        page.screenshot(path=folder / f"ui-{name}.png")
        if name == "playground":
            _show_drafts(page, folder)
        print(name, flush=True)


def _ask(page: Page) -> None:
    page.get_by_placeholder("Message").fill(PROMPT)
    page.get_by_placeholder("Message").press("Enter")
    page.wait_for_timeout(6000)


def _show_drafts(page: Page, folder: Path) -> None:
    page.get_by_label("New conversation").click()
    page.get_by_text("Rewrite a text").click()
    page.get_by_role("button", name="Steps", exact=True).click()
    page.wait_for_timeout(6000)
    page.screenshot(path=folder / "ui-speculation.png")


def _address(log: Path, server: subprocess.Popen[bytes]) -> str:
    for _ in range(1200):
        if found := re.search(r"docs +(http://\S+)/docs", log.read_text()):
            return found[1]
        if server.poll() is not None:
            break
        time.sleep(0.1)
    raise SystemExit(f"the server is not ready:\n{log.read_text()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
