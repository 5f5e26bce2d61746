"""Images, compose and manifests in deploy/ name files, settings, flags and ports that there are."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock import settings
from penstock.cli.serve import serve
from penstock.settings import ENV_PREFIX, NO_SETTINGS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted((DEPLOY / "docker").glob("Dockerfile*"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
COMPOSE = DEPLOY / "docker" / "compose.yaml"
PORT = settings.load(environ={}).serve.port
UID = "10001"


def documents(file: Path) -> list[Any]:
    return list(yaml.safe_load_all(file.read_text()))


def one(kind: str) -> dict[str, Any]:
    (found,) = (document for file in MANIFESTS for document in documents(file) if document["kind"] == kind)
    return dict(found)


def instructions(file: Path) -> Iterator[tuple[str, str]]:
    text = re.sub(r"(?m)^#.*\n", "", file.read_text()).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        yield name, rest.strip()


def container() -> dict[str, Any]:
    (found,) = one("Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("file", sorted(DEPLOY.rglob("*.y*ml")), ids=lambda file: str(file.relative_to(DEPLOY)))
def test_yaml_is_well_formed(file: Path) -> None:
    assert all(isinstance(document, dict) for document in documents(file))


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_an_image_copies_files_that_exist_and_that_its_context_has(file: Path) -> None:
    shown = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [rest.split()[:-1] for name, rest in instructions(file) if name == "COPY" and "--from" not in rest]
    sources = {source for copied in copies for source in copied}
    assert {"src", "ui", "pyproject.toml", "build_native.py"} <= sources <= shown
    for source in sources:
        assert (ROOT / source).exists(), source


def test_an_image_installs_extras_that_there_are() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    installed = [re.search(r"'\.\[(.*?)\]'", file.read_text()) for file in DOCKERFILES]
    named = [set(found[1].split(",")) for found in installed if found is not None]
    assert len(named) == len(DOCKERFILES) == 2
    assert set().union(*named) <= extras.keys()
    assert ["torch" in one for one in named] == [False, True]


def variables() -> Iterator[tuple[str, str]]:
    for file in (*DOCKERFILES, COMPOSE, *MANIFESTS):
        for name in re.findall(rf"\b{ENV_PREFIX}([A-Z_]+)\b(?=[=:\n])", file.read_text()):
            yield file.name, name


def test_every_variable_is_a_setting() -> None:
    known = {name for section in settings.Settings.__struct_fields__ for name in _fields(section)}
    found = list(variables())
    assert len({name for _, name in found}) >= 8
    for file, name in found:
        assert name.lower() in known or f"{ENV_PREFIX}{name}" in NO_SETTINGS, (file, name)


def _fields(section: str) -> tuple[str, ...]:
    return getattr(getattr(settings.load(environ={}), section), "__struct_fields__", ())


def test_values_are_valid(tmp_path: Path) -> None:
    environ = dict(re.findall(rf"({ENV_PREFIX}[A-Z_]+)=(\S+)", DOCKERFILES[0].read_text()))
    given = documents(COMPOSE)[0]["services"]["penstock"]["environment"]
    environ |= {name: re.sub(r"\$\{(\w+).*?\}", "secret", value) for name, value in given.items()}
    loaded = settings.load(environ=environ)
    assert loaded.tenants.keys
    assert loaded.needs_key
    file = tmp_path / "penstock.toml"
    file.write_text(one("ConfigMap")["data"]["penstock.toml"])
    assert settings.load(environ={}, file=file).tenants.keys


def test_servers_have_time_to_drain(tmp_path: Path) -> None:
    service = documents(COMPOSE)[0]["services"]["penstock"]
    assert float(service["stop_grace_period"].removesuffix("s")) > float(service["environment"]["PENSTOCK_DRAIN_S"])
    file = tmp_path / "penstock.toml"
    file.write_text(one("ConfigMap")["data"]["penstock.toml"])
    grace_s = one("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    _, sleep_s = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert grace_s > settings.load(environ={}, file=file).serve.drain_s + int(sleep_s) + 10


def test_containers_change_nothing_but_their_volumes() -> None:
    assert container()["securityContext"]["readOnlyRootFilesystem"]
    service = documents(COMPOSE)[0]["services"]["penstock"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    mounted = {mount["mountPath"] for mount in container()["volumeMounts"]}
    mounts = {volume.partition(":")[2] for volume in service["volumes"]} | set(service["tmpfs"])
    for file in DOCKERFILES:
        volumes = set(json.loads(dict(instructions(file))["VOLUME"]))
        assert volumes | {"/tmp"} == mounts == mounted - {"/etc/penstock"}


def test_images_have_versions() -> None:
    """Those of a minor version at least: a tag such as 17 is another program next year."""
    images = [service["image"] for service in documents(COMPOSE)[0]["services"].values()]
    others = [image for image in images if not image.startswith("penstock:")]
    bases = [rest.split()[0] for file in DOCKERFILES for name, rest in instructions(file) if name == "FROM"]
    assert len(others) == 4
    for image in (*others, *bases):
        assert re.search(r":v?\d+\.\d+", image), image


def test_arguments_are_those_of_the_command_line() -> None:
    flags = {option for parameter in serve.params for option in parameter.opts}
    given = [*container()["args"], *documents(COMPOSE)[0]["services"]["penstock"]["command"]]
    assert given.count("serve") == 2
    assert {argument.partition("=")[0] for argument in given if argument.startswith("--")} <= flags


def test_ports_and_probes_are_the_servers() -> None:
    for file in DOCKERFILES:
        assert dict(instructions(file))["EXPOSE"] == str(PORT)
        assert dict(instructions(file))["USER"] == UID
        assert f"127.0.0.1:{PORT}/health" in dict(instructions(file))["HEALTHCHECK"]
    assert container()["ports"] == [{"name": "http", "containerPort": PORT}]
    paths = {kind: container()[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}
    assert one("Deployment")["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(UID)
    assert one("Deployment")["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_files_and_volumes_that_are_mounted_exist() -> None:
    (document,) = documents(COMPOSE)
    for name, service in document["services"].items():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (COMPOSE.parent / source).is_file(), (name, source)
            else:
                assert source in document["volumes"], (name, source)
    pod = one("Deployment")["spec"]["template"]["spec"]
    assert {mount["name"] for mount in container()["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_autoscalers_follow_the_metric_and_the_deployment_that_there_are() -> None:
    from penstock.deployment import scaling_metrics

    assert '"penstock_replica_demand"' in Path(scaling_metrics.__file__).read_text()
    hpa, keda, name = one("HorizontalPodAutoscaler"), one("ScaledObject"), one("Deployment")["metadata"]["name"]
    assert hpa["spec"]["metrics"][0]["pods"]["metric"]["name"] == "penstock_replica_demand"
    assert "penstock_replica_demand" in keda["spec"]["triggers"][0]["metadata"]["query"]
    assert hpa["spec"]["scaleTargetRef"]["name"] == keda["spec"]["scaleTargetRef"]["name"] == name
    assert one("PodDisruptionBudget")["spec"]["selector"] == one("Deployment")["spec"]["selector"]
