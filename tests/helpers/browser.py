"""Browser flags and the checks of all pages of the UI tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Page

import penstock

DIST = Path(penstock.__file__).parent / "ui_dist"
AXE = Path(__file__).parents[2] / "ui" / "node_modules" / "axe-core" / "axe.min.js"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",  # containers have a small /dev/shm
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


# What cannot be seen whole, and not be scrolled to either: texts and buttons beyond the edge of the screen or of what
# clips them.
CLIPPED = """() => {
  const clipped = (element) => {
    const { left, right, width } = element.getBoundingClientRect();
    if (width <= 1 || getComputedStyle(element).textOverflow === "ellipsis") return false;
    for (let outer = element.parentElement; outer; outer = outer.parentElement) {
      const how = getComputedStyle(outer).overflowX;
      const edges = outer.getBoundingClientRect();
      if (how === "visible" || edges.width <= 1) continue;
      if (how !== "hidden" && how !== "clip" && outer.tagName !== "MAIN") return false;
      if (right > edges.right + 1 || left < edges.left - 1) return true;
    }
    return right > innerWidth + 1;
  };
  const told = (one) => [...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
  const parts = [...document.querySelectorAll("body *")].filter((one) => one.tagName === "BUTTON" || told(one));
  return parts.filter((one) => !one.closest(".sr-only") && clipped(one)).map((one) => one.outerHTML.slice(0, 120));
}"""


# Texts that are set smaller than 13 px, as the browser computes it.
SMALL_TEXT = """() => {
  const told = (one) => [...one.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
  const shown = [...document.querySelectorAll("body *")].filter((one) => told(one) && one.getClientRects().length);
  const small = shown.filter((one) => parseFloat(getComputedStyle(one).fontSize) < 13);
  return [...new Set(small.map((one) => one.outerHTML.slice(0, 120)))];
}"""


def violations(page: Page) -> list[str]:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: npm ci in ui/")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"][:3]
    ]


@dataclass
class PageErrors:
    """Console errors and requests to other origins, collected over all pages of a test."""

    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    allowed: tuple[str, ...] = ()

    def assert_none(self) -> None:
        errors = [error for error in self.errors if not any(part in error for part in self.allowed)]
        assert not errors
        assert not self.foreign
