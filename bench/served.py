"""What a server adds to a small model on a GPU: streams through several frontends, beside the engine alone.

    python bench/served.py [--frontends 4] [--streams 512] [--tokens 1000] [--json FILE]

The 0.6B shape of `bench/gpu.py` with random weights, greedy, all streams at once, as many tokens each, in turns:

alone    `LLM.generate` in the engine's own process, of token ids
served   streamed over HTTP to clients in several processes, which note when each event comes; a gap is the time between
         two events of a stream

Tokens per second are those from the first token of all to the last one, the first token of each stream left out; alone,
where nothing tells of single tokens, the time of one token each is taken off.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

import frontend
import made_tokenizer
from gpu import CONFIGS

CONTEXT = 4096
WORDS = 8  # of a prompt: 40 tokens

ALONE = """
import json, os, sys, time
from penstock.system.ownership import claim_process
claim_process()
from penstock import LLM, SamplingParams
folder, prompts, tokens, context = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
os.unlink(f"{folder}/tokenizer.json")  # the engine alone makes token ids, not text
llm = LLM(folder, load_format="dummy", context=context, device="cuda", max_sequences=512)
def seconds(count):
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    begun = time.perf_counter()
    results = llm.generate(prompts, params, progress=False)
    assert all(len(result.tokens) == count for result in results)
    return time.perf_counter() - begun
seconds(8)
for _ in range(2):
    first = seconds(1)
    print(json.dumps({"first_s": first, "all_s": seconds(tokens)}), flush=True)
"""


class Server(frontend.Server):
    """A real one."""

    def __init__(self, folder: Path, frontends: int) -> None:
        self.log = tempfile.NamedTemporaryFile()  # noqa: SIM115
        cli = "from penstock.cli import main; main()"
        options = {"load-format": "dummy", "device": "cuda", "context": CONTEXT, "max-sequences": 512, "port": 0}
        flags = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        command = [sys.executable, "-c", cli, "serve", str(folder), *flags, "--frontends", str(frontends)]
        self.process = subprocess.Popen(command, stderr=self.log, env=os.environ | {"PENSTOCK_MAX_WAITING": "4096"})
        while not (found := re.search(r"url +http://([\d.]+):(\d+)/v1", Path(self.log.name).read_text())):
            if self.process.poll() is not None:
                raise SystemExit(f"the server did not start: {Path(self.log.name).read_text()}")
            time.sleep(0.05)
        self.address = (found[1], int(found[2]))


def prompts(streams: int) -> list[str]:
    words = frontend.WORDS.split()
    return [f"{place} " + " ".join((words * 3)[:WORDS]) for place in range(streams)]


def request(model: str, prompt: str, tokens: int) -> bytes:
    body = {
        "model": model, "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0, "ignore_eos": True
    }  # fmt: skip
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def alone(folder: Path, options: argparse.Namespace) -> list[float]:
    """Tokens per second."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [tokenizer.encode(prompt).ids for prompt in prompts(options.streams)]
    copy = folder.with_name("alone")
    shutil.copytree(folder, copy)
    arguments = [str(copy), json.dumps(ids), str(options.tokens), str(CONTEXT)]
    run = subprocess.run([sys.executable, "-c", ALONE, *arguments], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr[-4000:])
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return [options.streams * (options.tokens - 1) / (one["all_s"] - one["first_s"]) for one in found]


def served(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    cores = sorted(os.sched_getaffinity(0))
    found = []
    with Server(folder, options.frontends) as server:

        def load(tokens: int) -> Any:
            asked = [request(folder.name, prompt, tokens) for prompt in prompts(options.streams)]
            return frontend.load(server, asked, cores, options.clients)

        load(8)
        for _ in range(options.rounds):
            frontends, engine = server.children_cpu_s(), server.children_cpu_s(b"penstock.engine.worker")
            seen, control_s, elapsed = load(options.tokens)
            frontends = server.children_cpu_s() - frontends
            engine = server.children_cpu_s(b"penstock.engine.worker") - engine
            firsts, lasts = [one[1] for one in seen], [one[2] for one in seen]
            span = max(lasts) - min(firsts)
            rate = options.streams * (options.tokens - 1) / span
            gaps = [gap for one in seen for gap in one[4]]
            step_ms = 1000 * options.streams / rate
            found.append(
                {
                    "tokens_per_s": rate,
                    "events_per_token": sum(one[3] for one in seen) / (options.streams * options.tokens),
                    "step_ms": step_ms,
                    "gap_ms_p50": frontend.quantile(gaps, 0.5) * 1000,
                    "gap_ms_p99": frontend.quantile(gaps, 0.99) * 1000,
                    "gap_steps_p99": frontend.quantile(gaps, 0.99) * 1000 / step_ms,
                    "gap_ms_max": max(gaps) * 1000,
                    "first_s_last": max(one[1] - one[0] for one in seen),
                    "cores_frontends": frontends / elapsed,
                    "cores_control": control_s / elapsed,
                    "cores_engine": engine / elapsed,
                }
            )
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--frontends", type=int, default=4)
    arguments.add_argument("--clients", type=int, default=4, help="processes")
    arguments.add_argument("--streams", type=int, default=512)
    arguments.add_argument("--tokens", type=int, default=1000, help="of each stream")
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "shape"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIGS["0.6b"]))
        made_tokenizer.write(folder, CONFIGS["0.6b"]["vocab_size"])
        by_itself = alone(folder, options)
        print("alone: tok/s", *(round(rate) for rate in by_itself), flush=True)
        found = served(folder, options)
    for one in found:
        print("served: " + "  ".join(f"{name} {value:.4g}" for name, value in one.items()), flush=True)
    share = statistics.median(one["tokens_per_s"] for one in found) / statistics.median(by_itself)
    print(f"served throughput: {share:.3f} of the engine's alone", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"alone": by_itself, "served": found, "share": share}, indent=1) + "\n")


if __name__ == "__main__":
    main()
