"""/openapi.json is true: schemathesis finds no 500, and no status or body that it does not tell of."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.server_process import PATIENCE_S, Server

# What this server has no rules for, and what has an instruction that is longer than its context.
REFUSED = {"/v1/moderations": 404, "/v1/rerank": 400, "/v2/rerank": 400, "/rerank": 400}
KEY = {"authorization": "Bearer a-key"}
ERROR = {"$ref": "#/components/schemas/ErrorBody"}


@pytest.fixture(scope="module")
def short(tiny: Path) -> Iterator[Server]:
    """With so short a context that no request takes long."""
    with Server(tiny, "--context", 128, api_key="a-key") as server:
        yield server


@pytest.fixture(scope="module")
def document(short: Server) -> dict[str, Any]:
    return dict(httpx.get(f"{short.url}/openapi.json", headers=KEY, timeout=PATIENCE_S).json())


@pytest.mark.timeout(1200)  # thousands of requests: a minute, but many where the machine is busy
def test_what_schemathesis_finds(short: Server, tmp_path: Path) -> None:
    arguments = [
        "run",
        f"{short.url}/openapi.json",
        "--header=Authorization: Bearer a-key",
        # Rules about two fields together are in the descriptions only: what the schema allows may be refused.
        "--exclude-checks=positive_data_acceptance",
        "--exclude-path=/observe/live",  # which does not end
        # The others are as those of the other two; single files and batches have ids that are not generated.
        "--exclude-path-regex=^/api/(generate|embeddings|show|pull|tags|ps|version)$|^/v1/(files|batches)/",
        "--max-examples=30",
        "--seed=1",
        f"--request-timeout={PATIENCE_S}",
    ]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("schemathesis")), *arguments],
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "helpers.schemathesis_hooks",
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "SERVED_MODEL": short.model,
            "NO_COLOR": "1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    log = short.log
    generating = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
    ollama = ("/api/chat", "/api/embed")
    for path in (
        *generating,
        *ollama,
        "/v1/messages/count_tokens",
        "/tokenize",
        "/detokenize",
        "/observe/cache/explain",
        "/observe/lab",
    ):
        assert log.count(f"POST {path} 200") > 5, f"too few requests to {path} were right to say much"
    assert not re.search(r"(GET|POST|DELETE) \S+ 5\d\d ", log)


def test_what_the_document_says_of_itself(document: dict[str, Any], short: Server) -> None:
    assert document["info"]["title"] == "Penstock"
    operations = {(verb, path): one for path, verbs in document["paths"].items() for verb, one in verbs.items()}
    refusals = [one["responses"]["422"] for one in operations.values() if "422" in one["responses"]]
    assert all(refusal["content"]["application/json"]["schema"] == ERROR for refusal in refusals), "FastAPI's own"
    assert {path for (_, path), one in operations.items() if "security" not in one} == {"/health", "/ready"}
    schemas = document["components"]["schemas"]
    assert schemas["ChatCompletionRequest"]["examples"][0]["model"] == short.model
    for reference in re.findall(r"'\$ref': '#/components/schemas/([^']+)'", str(document)):
        assert reference in schemas


def test_its_examples_work(document: dict[str, Any], short: Server) -> None:
    tried = 0
    for path, verbs in document["paths"].items():
        for operation in verbs.values():
            media = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if media is not None:
                schema = document["components"]["schemas"][media["schema"]["$ref"].rpartition("/")[2]]
                for example in schema.get("examples", []):
                    answer = httpx.post(short.url + path, json=example, headers=KEY, timeout=PATIENCE_S)
                    assert answer.status_code == REFUSED.get(path, 200), f"{path}: {answer.text}"
                    tried += 1
    assert tried >= 2


def test_the_page(document: dict[str, Any], short: Server) -> None:
    answer = httpx.get(f"{short.url}/docs", headers=KEY, timeout=PATIENCE_S)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    for path in document["paths"]:
        assert f"<code>{path}</code>" in answer.text
    for field in document["components"]["schemas"]["ChatCompletionRequest"]["properties"]:
        assert f"<code>{field}</code>" in answer.text
    assert "`" not in answer.text
    assert not re.search(r"https?://|src=|<script", answer.text)
