"""Penstock and llama.cpp on the same GGUF files on a CPU, turn by turn, neither with HTTP: the ratios are what counts.

    python bench/cpu.py [--rounds 3] [--threads 2] [--only TEXT] [--openvino PYTHON] [--json bench/results/cpu.json]

Rows, for each model: one prompt of 512 tokens (a second one, the first has warmed up); decode of 1 to 32 streams that
all have their prompts behind them; peak of resident memory of one stream; process start to the first token. Each figure
is taken in a process of its own, the peers taking turns, and is the median of the rounds. llama.cpp's tools are found
by `bench/llama_cpp.py`, which can also build them; without them Penstock runs alone. OpenVINO GenAI takes part where it
reads the file, if --openvino names a Python that has it. The limit of a row is what the
machine's measured read bandwidth (decode of one stream: every weight is read once per token) or its int8 products
(prefill) would allow.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cpu_models
import llama_cpp

STREAMS = (1, 4, 8, 16, 32)
PREFILL = 512


@dataclass(frozen=True)
class Lengths:
    """Of the decode rows. A larger model gets shorter ones where there are many streams: a run should take minutes."""

    prompt: int
    output: int


def lengths(model: str, streams: int) -> Lengths:
    if "1B" in model:
        return Lengths(64, 32) if streams > 1 else Lengths(512, 32)
    return Lengths(512, 64)


@dataclass
class Row:
    name: str
    unit: str
    penstock: Callable[[], float]
    llama_cpp: Callable[[], float]
    openvino: Callable[[str], float] | None = None  # given an interpreter
    limit: float | None = None
    more_is_better: bool = True


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--only", default="", help="rows whose name contains this, or several with commas between")
    arguments.add_argument("--json", type=Path, help="rows are added to this file; those of the same name are replaced")
    arguments.add_argument("--openvino", metavar="PYTHON", help="an interpreter with openvino-genai")
    arguments.add_argument("--child", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.child:
        order = json.loads(options.child)
        print(json.dumps({"limits": limits, "penstock": child}[order.pop("run")](**order)))
        return
    has_peer = llama_cpp.available()
    if not has_peer:
        print("llama.cpp is not there (python bench/llama_cpp.py builds it): Penstock runs alone")
    print(f"{'row':52} {'penstock':>9} {'llama.cpp':>9} {'ratio':>6} {'openvino':>9} {'limit':>7}")
    machine = in_child("limits", threads=options.threads)
    for row in rows(options.threads, machine, options.only.split(",")):
        result = measure(row, options.rounds, has_peer, options.openvino)
        keys = ("penstock", "llama_cpp", "ratio_vs_llama_cpp", "openvino", "limit")
        shown = (result[key] if result[key] is not None else "" for key in keys)
        print("{:52} {:>9} {:>9} {:>6} {:>9} {:>7}".format(row.name, *shown), flush=True)
        if options.json:
            keep(options.json, result, options, machine)


def rows(threads: int, machine: dict[str, float], only: list[str]) -> Iterator[Row]:
    for model, file in cpu_models.MODELS.items():
        for row in model_rows(model, file, threads, machine):
            if any(text in row.name for text in only):
                yield row


def model_rows(model: str, file: Callable[[], Path], threads: int, machine: dict[str, float]) -> Iterator[Row]:
    def ours(what: str, **options: Any) -> float:
        return float(penstock(file(), threads, what, **options))

    size_gb = file().stat().st_size / 1e9
    matrix_parameters = {"S": 0.1062e9, "L": 0.973e9}[model[0]]  # what a prompt's tokens are multiplied with
    yield Row(
        f"{model}: prefill {PREFILL}",
        "tok/s",
        lambda: ours("prefill", tokens=PREFILL),
        lambda: llama_cpp.prefill(file(), PREFILL, threads),
        lambda python: openvino(python, file(), threads, PREFILL, 1, 1)["prefill"],
        limit=machine["int8_gops"] * 1e9 / (2 * matrix_parameters),
    )
    for streams in STREAMS:
        size = lengths(model, streams)
        yield Row(
            f"{model}: decode {streams} stream{'s' * (streams > 1)} after {size.prompt}",
            "tok/s",
            lambda size=size, streams=streams: ours("decode", prompt=size.prompt, streams=streams, output=size.output),
            lambda size=size, streams=streams: llama_cpp.decode(file(), size.prompt, streams, size.output, threads)[0],
            lambda python, size=size, streams=streams: openvino(
                python, file(), threads, size.prompt, streams, size.output
            )["decode"],
            limit=machine["read_gbps"] / size_gb if streams == 1 else None,
        )
    yield Row(
        f"{model}: peak memory of 1 stream after 512",
        "MB",
        lambda: ours("peak_mb", prompt=512, output=16),
        lambda: llama_cpp.decode(file(), 512, 1, 16, threads)[1],
        more_is_better=False,
    )
    yield Row(
        f"{model}: process start to first token",
        "s",
        lambda: timed(lambda: ours("first_token")),
        lambda: timed(lambda: llama_cpp.first_token(file(), threads)),
        more_is_better=False,
    )


def measure(row: Row, rounds: int, has_peer: bool, python: str | None) -> dict[str, Any]:
    ours, theirs, others = [], [], []
    for _ in range(rounds):
        ours.append(row.penstock())
        if has_peer:
            theirs.append(row.llama_cpp())
        if python and row.openvino and (figure := row.openvino(python)):
            others.append(figure)
    mine, peer = statistics.median(ours), statistics.median(theirs) if theirs else None
    ratio = None if peer is None else mine / peer if row.more_is_better else peer / mine
    return {
        "row": row.name,
        "unit": row.unit,
        "penstock": round(mine, 1),
        "llama_cpp": None if peer is None else round(peer, 1),
        "openvino": round(statistics.median(others), 1) if others else None,
        "limit": None if row.limit is None else round(row.limit, 1),
        "ratio_vs_llama_cpp": None if ratio is None else round(ratio, 2),
        "ratio_vs_limit": None if row.limit is None else round(mine / row.limit, 2),
    }


def openvino(python: str, model: Path, *sizes: int) -> dict[str, float | None]:
    """Nothing where OpenVINO cannot read the file."""
    script = Path(__file__).with_name("openvino_peer.py")
    command = [python, str(script), str(model), *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {"prefill": None, "decode": None}


def keep(path: Path, result: dict[str, Any], options: argparse.Namespace, machine: dict[str, float]) -> None:
    report = json.loads(path.read_text()) if path.exists() else {"rows": []}
    rows = [row for row in report["rows"] if row["row"] != result["row"]] + [result]
    facts = {"chip": chip(), "threads": options.threads, "rounds": options.rounds, "machine": machine}
    versions = {"llama_cpp": llama_cpp.SDIST}
    report = {"rows": rows, **facts, "versions": versions, "date": datetime.now(UTC).date().isoformat()}
    path.write_text(json.dumps(report, indent=2) + "\n")


# --- the machine


def limits(threads: int) -> dict[str, float]:
    """Best of a few: read bandwidth, and int8 products through torch's own (oneDNN)."""
    import torch

    torch.set_num_threads(threads)
    memory = torch.ones(1 << 28, dtype=torch.float32)  # 1 GiB
    left = torch.randint(0, 127, (1024, 4096), dtype=torch.uint8)
    right = torch.randint(-127, 127, (4096, 4096), dtype=torch.int8)
    read_s = min(timed(lambda: memory.sum()) for _ in range(5))
    layer = _int8_linear(right)
    product_s = min(timed(lambda: layer(left)) for _ in range(5))
    return {
        "read_gbps": round(memory.nbytes / read_s / 1e9, 1),
        "int8_gops": round(2 * 1024 * 4096 * 4096 / product_s / 1e9, 1),
    }


def _int8_linear(weight: Any) -> Callable[[Any], Any]:
    import torch

    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    scales, zeros = torch.ones(weight.shape[0]), torch.zeros(weight.shape[0], dtype=torch.int32)

    def run(x: Any) -> Any:
        return torch.ops.onednn.qlinear_pointwise(
            x, 1.0, 0, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )

    return run


def chip() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# --- Penstock, in a process of its own


def penstock(model: Path, threads: int, what: str, **options: Any) -> float:
    return float(in_child("penstock", model=str(model), threads=threads, what=what, **options))


def in_child(run: str, **order: Any) -> Any:
    """This process stays small: what it starts would begin with its peak of memory."""
    command = [sys.executable, __file__, "--child", json.dumps({"run": run, **order})]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout)


def child(model: str, threads: int, what: str, **options: Any) -> float:
    from penstock import LLM

    streams = options.get("streams", 1)
    kv = f"{max(256, 64 * streams)}MiB"
    with LLM(model, threads=threads, prefix_caching=False, context=2048, kv_memory=kv, device="cpu") as llm:
        if what == "prefill":
            generate(llm, 1, options["tokens"], 1)
            return options["tokens"] / timed(lambda: generate(llm, 1, options["tokens"], 1))
        if what == "decode":
            return decode_speed(llm, **options)
        if what == "peak_mb":
            generate(llm, 1, options["prompt"], options["output"])
            return peak_mb()
        generate(llm, 1, 16, 1)
    return 0.0


def decode_speed(llm: Any, prompt: int, streams: int, output: int) -> float:
    """Tokens per second while all streams decode: from the step that gives the last of them its first token to the
    step that ends the first of them."""
    generate(llm, streams, 8, 4)
    # The first stream has gone on while the others had their prompts computed.
    ahead = streams * prompt // 256 + streams + 2
    stamps: list[tuple[float, int, bool]] = []  # (when, tokens so far, somebody has ended)
    begun: set[str] = set()
    begins = 0
    for name, count, finished in stream(llm, streams, prompt, output + ahead):
        total = (stamps[-1][1] if stamps else 0) + count
        if name not in begun:
            begun.add(name)
            begins = len(stamps)
        stamps.append((time.perf_counter(), total, finished))
        if finished:
            break
    window = stamps[begins:]
    # Deltas of one step come together: count from the last of the step that completed the set.
    first, last = window[0], window[-1]
    return (last[1] - first[1]) / (last[0] - first[0])


def stream(llm: Any, streams: int, prompt: int, output: int) -> Iterator[tuple[str, int, bool]]:
    engine = llm._driver.engine
    for flight in flights(llm, streams, prompt, output):
        for submit in flight.submits:
            engine.submit(submit)
    left = streams
    while left:
        for frame in engine.receive(None):
            for delta in frame.deltas:
                left -= delta.finish is not None
                yield delta.id, len(delta.tokens), delta.finish is not None


def flights(llm: Any, streams: int, prompt: int, output: int) -> list[Any]:
    from penstock import SamplingParams

    drawn = random.Random(0)
    prompts = [[drawn.randrange(300, llm.model.spec.vocab_size - 300) for _ in range(prompt)] for _ in range(streams)]
    params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    return llm._accept(prompts, params, lambda tokens: {"tokens": tokens}, False)


def generate(llm: Any, streams: int, prompt: int, output: int) -> None:
    for _ in stream(llm, streams, prompt, output):
        pass


def peak_mb() -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
