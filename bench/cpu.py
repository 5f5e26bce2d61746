"""Penstock and its peers on the same GGUF files on a CPU, turn by turn, none with HTTP: the ratios are what counts.

    python bench/cpu.py [--rounds 3] [--threads 2] [--only TEXT] [--openvino PYTHON] [--json bench/results/cpu.json]

Rows, for each model: process start to the first token; one prompt of 512 tokens (a second one, the first has warmed
up); decode of 1 to 32 streams that all have their prompts behind them; peak of resident memory of one stream. In every
round the engines take turns at every row; a figure is the median of the rounds. All rows take some 20 minutes.

The peers: llama.cpp, whose tools are found by `bench/llama_cpp.py`, which can also build them; OpenVINO GenAI, if
--openvino names a Python that has it; transformers with the file's weights in float32, if it is installed here. One
that is not there, or cannot read a file, is left out, and that is said.

The limit of a row is what the machine's measured read bandwidth (decode of one stream: every weight is read once per
token) or its int8 products (prefill) would allow.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import cpu_models
import llama_cpp
from cpu_child import Child, Failed, timed

ENGINES = ("penstock", "llama_cpp", "openvino", "transformers")
STREAMS = (1, 4, 8, 16, 32)
PREFILL = 512
KEPT = "transformers"  # loads a file in half a minute: one process for all rounds
FEW = 8  # tokens per stream that transformers is given


@dataclass(frozen=True)
class Lengths:
    """Of the decode rows. A larger model gets shorter ones where there are many streams: a run should take minutes."""

    prompt: int
    output: int


def lengths(model: str, streams: int) -> Lengths:
    if "1B" in model:
        return Lengths(64, 32) if streams > 1 else Lengths(512, 32)
    return Lengths(512, 64 if streams < 8 else 32)


class Engine(Protocol):
    """Tokens per second, or None: it cannot tell (any more)."""

    def start_s(self) -> float | None: ...
    def prefill(self, tokens: int) -> float | None: ...
    def decode(self, prompt: int, streams: int, output: int) -> float | None: ...
    def peak_mb(self) -> float | None: ...
    def close(self) -> None: ...


Start = Callable[[Path, int], Engine]


@dataclass(frozen=True)
class Row:
    name: str
    unit: str
    figure: Callable[[str, Engine], float | None]  # given the engine's name
    limit: float | None = None
    more_is_better: bool = True


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--only", default="", help="rows whose name contains this, or several with commas between")
    arguments.add_argument("--json", type=Path, help="rows are added to this file; those of the same name are replaced")
    arguments.add_argument("--openvino", metavar="PYTHON", help="an interpreter with openvino-genai")
    arguments.add_argument("--without", default="", help="peers to leave out, with commas between")
    arguments.add_argument("--limits", action="store_true", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.limits:
        print(json.dumps(limits(options.threads)))
        return
    engines = {name: start for name, start in found(options.openvino).items() if name not in options.without.split(",")}
    machine = machine_limits(options.threads)
    print(f"reads {machine['read_gbps']} GB/s, {machine['int8_gops']} GOP/s of int8 products")
    print(f"{'row':52} " + " ".join(f"{name:>12}" for name in engines) + f" {'ratio':>6} {'limit':>8}", flush=True)
    for model, file in cpu_models.MODELS.items():
        rows = [
            row
            for row in model_rows(model, file(), machine)
            if any(text in row.name for text in options.only.split(","))
        ]
        if not rows:
            continue
        figures = measure(rows, engines, file(), options.threads, options.rounds)
        for row in rows:
            result = summary(row, figures[row.name])
            shown = [result[name] for name in (*engines, "ratio_vs_llama_cpp", "limit")]
            widths = [12] * len(engines) + [6, 8]
            columns = (f"{'' if value is None else value:>{width}}" for value, width in zip(shown, widths, strict=True))
            print(f"{row.name:52}", *columns, flush=True)
            if options.json:
                keep(options.json, result, options, machine)


def found(openvino: str | None) -> dict[str, Start]:
    """Engines that can run here, in the order of their turns."""
    engines: dict[str, Start] = {"penstock": lambda model, threads: Child("cpu_penstock.py", model, threads)}
    if llama_cpp.available():
        engines["llama_cpp"] = llama_cpp.LlamaCpp
    else:
        print("llama.cpp is not there (python bench/llama_cpp.py builds it)")
    if openvino:
        engines["openvino"] = lambda model, threads: Child("openvino_peer.py", model, threads, openvino)
    else:
        print("OpenVINO GenAI is not there (--openvino names a Python that has openvino-genai)")
    if importlib.util.find_spec("transformers"):
        engines["transformers"] = lambda model, threads: Child("cpu_transformers.py", model, threads)
    else:
        print("transformers is not installed")
    return engines


def model_rows(model: str, file: Path, machine: dict[str, float]) -> Iterator[Row]:
    size_gb = file.stat().st_size / 1e9
    matrix_parameters = {"S": 0.1062e9, "L": 0.973e9}[model[0]]  # what a prompt's tokens are multiplied with
    yield Row(f"{model}: process start to first token", "s", lambda _, engine: engine.start_s(), more_is_better=False)
    yield Row(
        f"{model}: prefill {PREFILL}",
        "tok/s",
        lambda _, engine: engine.prefill(PREFILL),
        limit=machine["int8_gops"] * 1e9 / (2 * matrix_parameters),
    )
    for streams in STREAMS:
        yield decode_row(model, streams, machine["read_gbps"] / size_gb)
        if streams == 1:
            name = f"{model}: peak memory of 1 stream after 512"
            yield Row(name, "MB", lambda _, engine: engine.peak_mb(), more_is_better=False)


def decode_row(model: str, streams: int, limit: float) -> Row:
    size = lengths(model, streams)

    def figure(name: str, engine: Engine) -> float | None:
        return engine.decode(size.prompt, streams, FEW if name == KEPT else size.output)

    name = f"{model}: decode {streams} stream{'s' * (streams > 1)} after {size.prompt}"
    return Row(name, "tok/s", figure, limit if streams == 1 else None)


def measure(
    rows: list[Row], starts: dict[str, Start], file: Path, threads: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Figures by row and engine. The engines are new in every round, but for one."""
    figures: dict[str, dict[str, list[float]]] = {row.name: {name: [] for name in starts} for row in rows}
    engines: dict[str, Engine] = {}
    broken: set[str] = set()
    for _ in range(rounds):
        for row in rows:
            for name, start in starts.items():
                if name in broken:
                    continue
                try:
                    if name not in engines:
                        engines[name] = start(file, threads)
                    if (figure := row.figure(name, engines[name])) is not None:
                        figures[row.name][name].append(figure)
                except Failed as error:
                    if name == "penstock":
                        raise
                    broken.add(name)
                    print(f"{name} cannot run {file.name}: {str(error).strip().splitlines()[-1]}")
        for name in [name for name in engines if name != KEPT]:
            engines.pop(name).close()
    for engine in engines.values():
        engine.close()
    return figures


def summary(row: Row, figures: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: statistics.median(figures[name]) if figures.get(name) else None for name in ENGINES}
    mine, peer = medians["penstock"], medians["llama_cpp"]
    assert mine is not None
    ratio = None if peer is None else mine / peer if row.more_is_better else peer / mine
    others = [figure for name, figure in medians.items() if figure is not None and name != "penstock"]
    best = None if not others else mine / max(others) if row.more_is_better else min(others) / mine
    return {
        "row": row.name,
        "unit": row.unit,
        **{name: rounded(figure) for name, figure in medians.items()},
        "limit": rounded(row.limit),
        "ratio_vs_llama_cpp": rounded(ratio, 2),
        "ratio_vs_best_peer": rounded(best, 2),
        "ratio_vs_limit": None if row.limit is None else round(mine / row.limit, 2),
        "rounds": len(figures["penstock"]),
    }


def rounded(figure: float | None, digits: int = 1) -> float | None:
    return None if figure is None else round(figure, digits)


def keep(path: Path, result: dict[str, Any], options: argparse.Namespace, machine: dict[str, float]) -> None:
    report = json.loads(path.read_text()) if path.exists() else {"rows": []}
    rows = [row for row in report["rows"] if row["row"] != result["row"]] + [result]
    facts = {"chip": chip(), "threads": options.threads, "machine": machine}
    report = {
        "rows": rows,
        **facts,
        "versions": versions(options.openvino),
        "date": datetime.now(UTC).date().isoformat(),
    }
    path.write_text(json.dumps(report, indent=2) + "\n")


def versions(openvino: str | None) -> dict[str, str]:
    from importlib.metadata import version

    found = {"llama_cpp": llama_cpp.SDIST, "torch": version("torch")}
    if importlib.util.find_spec("transformers"):
        found["transformers"] = version("transformers")
    if openvino:
        asked = "from importlib.metadata import version; print(version('openvino-genai'))"
        found["openvino"] = subprocess.run(
            [openvino, "-c", asked], capture_output=True, text=True, check=True
        ).stdout.strip()
    return found


# --- the machine


def machine_limits(threads: int) -> dict[str, float]:
    """Measured in a process of its own: this one stays small."""
    command = [sys.executable, __file__, "--limits", "--threads", str(threads)]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def limits(threads: int) -> dict[str, float]:
    """Best of a few: reading (huge pages, as the weights have), and int8 products through torch's own (oneDNN)."""
    import torch

    from penstock.kernels.cpu.arena import Arena

    torch.set_num_threads(threads)
    memory = Arena().empty(1 << 28, dtype=torch.float32).fill_(1.0)  # 1 GiB
    left = torch.randint(0, 127, (1024, 4096), dtype=torch.uint8)
    right = torch.randint(-127, 127, (4096, 4096), dtype=torch.int8)
    read_s = min(timed(lambda: memory.sum()) for _ in range(8))
    layer = _int8_linear(right)
    product_s = min(timed(lambda: layer(left)) for _ in range(8))
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


if __name__ == "__main__":
    main()
