"""What is in deploy/ fits the server: metric names, labels, settings and flags that it really has."""

import configparser
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from helpers.server_process import PATIENCE_S, Server
from penstock import settings
from penstock.cli.serve import serve

DEPLOY = Path(__file__).parents[2] / "deploy"
OWN = re.compile(r"\b((?:penstock|process)_\w+)(?:\{([^}]*)\})?")
# labels that a server does not set itself: Prometheus's own
GIVEN = {"instance", "job", "le"}


def dashboard() -> dict[str, Any]:
    return dict(json.loads((DEPLOY / "grafana-dashboard.json").read_text()))


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((DEPLOY / "penstock-alerts.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard_expressions() -> Iterator[str]:
    document = dashboard()
    for panel in document["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (variable["definition"] for variable in document["templating"]["list"] if "definition" in variable)


@pytest.fixture(scope="module")
def exported(server: Server) -> dict[str, set[str]]:
    """Names of samples that the server exports, or would, and their labels: those of the metric's first sample."""
    server.client().completions.create(model=server.model, prompt="a pump", max_tokens=3)
    wrong = {"model": server.model}
    httpx.post(f"{server.api}/completions", json=wrong, timeout=PATIENCE_S)  # an error, so that it is counted
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(httpx.get(f"{server.url}/metrics", timeout=PATIENCE_S).text):
        labels = {name for sample in family.samples for name in sample.labels}
        endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {family.name + ending: labels for ending in endings}
    return found


def test_every_metric_and_label_exists(exported: dict[str, set[str]]) -> None:
    expressions = [*dashboard_expressions(), *(rule["expr"] for rule in rules())]
    used = [match for expression in expressions for match in OWN.findall(expression)]
    assert len({name for name, _ in used}) > 25
    for name, matchers in used:
        assert name in exported, name
        # a gauge that has not been set (there is no GPU here) has no sample to show its labels
        labels = set(re.findall(r"(\w+)\s*[=!]", matchers))
        assert not exported[name] or labels <= exported[name] | GIVEN, (name, labels)


def test_sums_go_by_labels_that_exist(exported: dict[str, set[str]]) -> None:
    known = set().union(*exported.values()) | GIVEN
    for expression in [*dashboard_expressions(), *(rule["expr"] for rule in rules())]:
        for grouped in re.findall(r"by \(([^)]*)\)", expression):
            assert {label.strip() for label in grouped.split(",")} <= known, expression
        assert expression.count("(") == expression.count(")")


def test_the_dashboard_is_whole() -> None:
    document = dashboard()
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] <= place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["targets"]
            assert panel["datasource"]["uid"] == "${datasource}"  # whatever it is called where it is imported
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"


def test_alerts_say_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) > 5
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert {"summary", "description"} <= set(rule["annotations"])


def test_the_example_settings_are_valid() -> None:
    loaded = settings.load(file=DEPLOY / "penstock.toml", environ={})
    assert loaded.observe.log_format == "json"


def test_the_unit_starts_what_exists() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "penstock.service")
    program, command, *arguments = unit["Service"]["ExecStart"].split()
    assert Path(program).name == "penstock"
    assert command == serve.name
    flags = {name for parameter in serve.params for name in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= flags
    drain_s = settings.load(file=DEPLOY / "penstock.toml", environ={}).serve.drain_s
    assert float(unit["Service"]["TimeoutStopSec"]) > drain_s


def test_prometheus_reads_the_rules_that_are_there() -> None:
    document = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert all((DEPLOY / name).is_file() for name in document["rule_files"])
    (job,) = document["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    down = next(rule for rule in rules() if rule["alert"] == "PenstockDown")
    assert f'job="{job["job_name"]}"' in down["expr"]
