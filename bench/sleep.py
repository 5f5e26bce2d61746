"""How fast a served model on a GPU falls asleep and wakes, and whether it answers as before.

    python bench/sleep.py [--model 8b] [--rounds 4] [--json FILE]

A server of the shape of `bench/gpu.py` with random weights. In each round: `POST /sleep`, the device's memory in use,
`POST /wake_up`, and the greedy answer to a prompt, which must be the first one's. Then once more by `penstock sleep`
and `penstock wake`, and once woken by the request alone. Times are those of a client.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import made_tokenizer
from gpu import CONFIGS

CLI = [sys.executable, "-c", "from penstock.cli import main; main()"]
PROMPT = "The river runs over old stones and under the bridge, where people stand and look at the water. " * 8
PATIENCE_S = 180.0


class Server:
    def __init__(self, folder: Path, *options: str) -> None:
        self.log = tempfile.NamedTemporaryFile()  # noqa: SIM115
        command = [*CLI, "serve", str(folder), "--load-format", "dummy", "--device", "cuda", "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=self.log)
        until = time.monotonic() + PATIENCE_S
        while not (found := re.search(r"url +(http://[\d.]+:\d+)/v1", Path(self.log.name).read_text())):
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the server did not start: {Path(self.log.name).read_text()}")
            time.sleep(0.05)
        self.url = found[1]

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = Request(self.url + path, data, {"content-type": "application/json"})
        with urlopen(asked, timeout=PATIENCE_S) as response:
            return json.load(response)

    def answer(self, model: str, tokens: int = 32) -> str:
        body = {"model": model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        text: str = self.call("/v1/completions", body)["choices"][0]["text"]
        return text

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def used_mib() -> float:
    """Of the first GPU, by all processes."""
    found = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(found.stdout.split()[0])


def timed(work: Any) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def rounds(server: Server, model: str, count: int) -> list[dict[str, Any]]:
    expected, one = server.answer(model), server.answer(model, 1)
    awake, found = used_mib(), []
    for _ in range(count):
        sleep_s, _ = timed(lambda: server.call("/sleep", {}))
        asleep = used_mib()
        assert server.call("/is_sleeping")["is_sleeping"]
        wake_s, _ = timed(lambda: server.call("/wake_up", {}))
        first_s, again = timed(lambda: server.answer(model, 1))
        assert again == one, (again, one)
        assert server.answer(model) == expected
        found.append({"sleep_s": sleep_s, "wake_s": wake_s, "first_s": first_s, "awake": awake, "asleep": asleep})
        print("  ".join(f"{name} {value:.3f}" for name, value in found[-1].items()), flush=True)
    for name in ("sleep", "wake"):
        seconds, run = timed(
            lambda name=name: subprocess.run([*CLI, name, "--url", server.url], capture_output=True, text=True)
        )
        assert run.returncode == 0, run.stderr
        print(f"penstock {name}: {seconds:.2f} s, {run.stdout.strip()}; {used_mib():.0f} MiB in use", flush=True)
    assert server.answer(model) == expected
    server.call("/sleep", {})
    request_s, again = timed(lambda: server.answer(model, 1))
    assert again == one
    print(f"woken by a request, which is answered after {request_s:.3f} s", flush=True)
    assert server.answer(model) == expected
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", choices=CONFIGS, default="8b")
    arguments.add_argument("--rounds", type=int, default=4)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / f"shape-{options.model}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIGS[options.model]))
        made_tokenizer.write(folder, CONFIGS[options.model]["vocab_size"])
        before = used_mib()
        start_s, server = timed(lambda: Server(folder, "--context", "20480"))
        print(f"{os.cpu_count()} cores; {before:.0f} MiB in use before; ready after {start_s:.1f} s", flush=True)
        try:
            found = rounds(server, folder.name, options.rounds)
        except BaseException:
            print(Path(server.log.name).read_text()[-6000:], flush=True)
            raise
        finally:
            server.close()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
