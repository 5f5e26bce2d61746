"""Penstock and its peers on the same GGUF files on a CPU, in turns, without HTTP. The ratios are the result.

    python bench/cpu.py [--rounds 3] [--threads 2] [--only TEXT] [--openvino PYTHON] [--json bench/results/cpu.json]
    python bench/cpu.py --before FOLDER [...]                   an older version, too
    python bench/cpu.py --table bench/results/cpu.json          the last result, as in docs/PERFORMANCE.md

Rows, for each model: process start to first token; prefill of 512 tokens (the second prompt, after warm-up); decode of
1 to 32 streams after their prefill; peak resident memory with one stream. In every round the engines take turns at
every row; a figure is the median of the rounds. transformers, and OpenVINO with the larger models, run in the first
round only. All rows take about 20 minutes.

Prompts of SmolLM2 take a fraction of a second, which neighbours on the machine easily disturb: engines that stay loaded
take eight turns each in every round. The best of all turns and the CPU time per prompt (all threads, waiting included)
are shown below the medians.

The peers: llama.cpp and its fork ik_llama.cpp, whose tools are found by `bench/llama_cpp.py`, which can also build
them; OpenVINO GenAI, if --openvino names a Python that has it; transformers with the file's weights in float32, if it
is installed. A peer that is missing, or cannot read a file, is skipped with a message. --before names the checkout of
an older version of Penstock, with its own `make setup`; the ratio to it is the median of the ratios turn by turn.

The limit of a row follows from the machine's read bandwidth (decode of one stream: every weight is read once per token)
or its int8 products (prefill), measured before and after Penstock's turn.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import bytecode
import cpu_models
import llama_cpp
from cpu_child import Child, Failed

LIMIT = "limit"
PEERS = ("llama_cpp", "ik_llama_cpp", "openvino", "transformers")
STREAMS = (1, 4, 8, 16, 32)
PREFILL = 512
PREFILL_TURNS = 8  # in a round, of a small model
LARGE_BYTES = 500e6
SLOW = "transformers"
SLOW_OUTPUT = 8  # tokens per stream that it is given


@dataclass(frozen=True)
class Lengths:
    """Lengths of the decode rows; shorter for many streams of a larger model, so that a run takes minutes."""

    prompt: int
    output: int


def lengths(model: str, streams: int) -> Lengths:
    if "1B" in model:
        return Lengths(64, 32 if streams < 8 else 16) if streams > 1 else Lengths(512, 32)
    return Lengths(512, 64 if streams < 8 else 32)


class Engine(Protocol):
    """Figures in tokens per second; None if not available."""

    def start_s(self) -> float | None: ...
    def prefill(self, tokens: int) -> float | None: ...
    def decode(self, prompt: int, streams: int, output: int) -> float | None: ...
    def peak_mb(self) -> float: ...
    def close(self) -> None: ...


Start = Callable[[Path, int], Engine]


@dataclass(frozen=True)
class Row:
    name: str
    unit: str
    figure: Callable[[str, Engine], float | None]  # given the engine's name
    limit: Callable[[Child], float] | None = None  # given the machine
    more_is_better: bool = True
    turns: int = 1  # in a round


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--only", default="", help="rows whose name contains this, or several, comma-separated")
    arguments.add_argument("--json", type=Path, help="rows are merged into this file")
    arguments.add_argument("--openvino", metavar="PYTHON", help="an interpreter with openvino-genai")
    arguments.add_argument("--before", metavar="FOLDER", type=Path, help="a checkout of an older version, installed")
    arguments.add_argument("--without", default="", help="peers to skip, comma-separated")
    arguments.add_argument("--table", type=Path, help="only print the rows of this file as a table")
    options = arguments.parse_args()
    if options.table:
        print("\n".join(table(json.loads(options.table.read_text())["rows"])))
        return
    bytecode.compile_all()
    without = options.without.split(",")
    engines = {name: start for name, start in found(options.openvino, options.before).items() if name not in without}
    print(f"{'row':52} " + " ".join(f"{name:>12}" for name in engines) + f" {'ratio':>6} {'limit':>8}", flush=True)
    for model, file in cpu_models.MODELS.items():
        rows = [row for row in model_rows(model, file()) if any(text in row.name for text in options.only.split(","))]
        if not rows:
            continue
        figures, spent = measure(rows, engines, file(), options.threads, options.rounds)
        for row in rows:
            result = summary(row, figures[row.name], spent[row.name])
            shown = [result[name] for name in (*engines, "ratio_vs_llama_cpp", "limit")]
            widths = [12] * len(engines) + [6, 8]
            columns = (f"{'' if value is None else value:>{width}}" for value, width in zip(shown, widths, strict=True))
            print(f"{row.name:52}", *columns, flush=True)
            if "ratio_vs_before" in result:
                print(f"{'ratio to the version before':>52} {result['ratio_vs_before']:>12}", flush=True)
            for name, of_engines in (("best", result.get("best")), ("CPU ms per prompt", result.get("cpu_ms"))):
                if of_engines:
                    columns = (f"{of_engines.get(engine, ''):>12}" for engine in engines)
                    print(f"{name:>52}", *columns, flush=True)
            if options.json:
                keep(options.json, result, options)


def found(openvino: str | None, before: Path | None) -> dict[str, Start]:
    """Engines that can run here, in turn order."""
    engines: dict[str, Start] = {"penstock": lambda model, threads: Child("cpu_penstock.py", model, threads)}
    if before:
        script, python = (str(before.resolve() / name) for name in ("bench/cpu_penstock.py", ".venv/bin/python"))
        engines["before"] = lambda model, threads: Child(script, model, threads, python)
    if llama_cpp.LLAMA_CPP.available():
        engines["llama_cpp"] = llama_cpp.LlamaCpp
    else:
        print("llama.cpp is not there (python bench/llama_cpp.py builds it)")
    if llama_cpp.IK_LLAMA_CPP.available():
        engines["ik_llama_cpp"] = llama_cpp.IkLlamaCpp
    else:
        print("ik_llama.cpp is not there (python bench/llama_cpp.py ik builds it)")
    if openvino:
        engines["openvino"] = lambda model, threads: Child("openvino_peer.py", model, threads, openvino)
    else:
        print("OpenVINO GenAI is not there (--openvino names a Python that has openvino-genai)")
    if importlib.util.find_spec("transformers"):
        engines["transformers"] = lambda model, threads: Child("cpu_transformers.py", model, threads)
    else:
        print("transformers is not installed")
    return engines


def model_rows(model: str, file: Path) -> Iterator[Row]:
    size_gb = file.stat().st_size / 1e9
    matrix_parameters = {"S": 0.1062e9, "L": 0.973e9}[
        model[0]
    ]  # of the matrices that prompt tokens are multiplied with
    yield Row(f"{model}: process start to first token", "s", lambda _, engine: engine.start_s(), more_is_better=False)
    yield Row(
        f"{model}: prefill {PREFILL}",
        "tok/s",
        lambda _, engine: engine.prefill(PREFILL),
        limit=lambda machine: machine.ask("int8_gops") * 1e9 / (2 * matrix_parameters),
        turns=PREFILL_TURNS if file.stat().st_size < LARGE_BYTES else 1,
    )
    for streams in STREAMS:
        yield decode_row(model, streams, size_gb)
        if streams == 1:
            name = f"{model}: peak memory of 1 stream after 512"
            yield Row(name, "MB", lambda _, engine: engine.peak_mb(), more_is_better=False)


def decode_row(model: str, streams: int, size_gb: float) -> Row:
    size = lengths(model, streams)

    def limit(machine: Child) -> float:
        return machine.ask("read_gbps") / size_gb

    def figure(name: str, engine: Engine) -> float | None:
        return engine.decode(size.prompt, streams, SLOW_OUTPUT if name == SLOW else size.output)

    name = f"{model}: decode {streams} stream{'s' * (streams > 1)} after {size.prompt}"
    return Row(name, "tok/s", figure, limit if streams == 1 else None)


Figures = dict[str, dict[str, list[float]]]  # by row and engine


def measure(
    rows: list[Row], starts: dict[str, Start], file: Path, threads: int, rounds: int
) -> tuple[Figures, Figures]:
    """Figures, "limit" being an engine too, and the CPU seconds of all turns but the first of a round. The engines are
    new in every round."""
    figures: Figures = {row.name: {name: [] for name in (*starts, LIMIT)} for row in rows}
    spent: Figures = {row.name: {name: [] for name in starts} for row in rows}
    engines: dict[str, Engine] = {}
    machine = Child("cpu_machine.py", file, threads)
    broken: set[str] = set()
    for number in range(rounds):
        for row, turn in ((each, turn) for each in rows for turn in range(each.turns)):
            before = row.limit(machine) if row.limit and turn == 0 else None
            for name, start in starts.items():
                if name in broken or (number > 0 and once(name, file)) or (turn > 0 and not stays(engines[name])):
                    continue
                try:
                    if name not in engines:
                        engines[name] = start(file, threads)
                    used = cpu_s(engines[name])
                    if (figure := row.figure(name, engines[name])) is not None:
                        figures[row.name][name].append(figure)
                    if turn > 0:
                        spent[row.name][name].append(cpu_s(engines[name]) - used)
                except Failed as error:
                    if name == "penstock":
                        raise
                    broken.add(name)
                    print(f"{name} cannot run {file.name}: {str(error).strip().splitlines()[-1]}")
                if name == "penstock" and row.limit and before is not None:
                    figures[row.name][LIMIT].append((before + row.limit(machine)) / 2)
        while engines:
            engines.popitem()[1].close()
    machine.close()
    return figures, spent


def stays(engine: Engine) -> bool:
    """Whether it is loaded already, so that one more turn takes no longer than its prompts."""
    return isinstance(engine, Child)


def cpu_s(engine: Engine) -> float:
    return engine.cpu_s() if isinstance(engine, Child) else 0.0


def once(name: str, file: Path) -> bool:
    """Whether the engine runs in the first round only, because it is slow."""
    return name == SLOW or (name == "openvino" and file.stat().st_size > LARGE_BYTES)


def summary(row: Row, figures: dict[str, list[float]], spent: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: statistics.median(figures[name]) if figures.get(name) else None for name in ("penstock", *PEERS)}
    mine, peer = medians["penstock"], medians["llama_cpp"]
    assert mine is not None
    ratio = None if peer is None else mine / peer if row.more_is_better else peer / mine
    others = [figure for name, figure in medians.items() if figure is not None and name != "penstock"]
    best = None if not others else mine / max(others) if row.more_is_better else min(others) / mine
    limits = figures[LIMIT]
    more = beside_before(row, figures) if figures.get("before") else {}
    if row.turns > 1:
        more |= in_turns(row, figures, spent)
    parts = [figure / limit for figure, limit in zip(figures["penstock"], limits, strict=False)]  # of the same moment
    return {
        "row": row.name,
        "unit": row.unit,
        **{name: rounded(figure, 2 if row.unit == "s" else 1) for name, figure in medians.items()},
        "limit": rounded(statistics.median(limits)) if limits else None,
        "ratio_vs_llama_cpp": rounded(ratio, 2),
        "ratio_vs_best_peer": rounded(best, 2),
        "ratio_vs_limit": rounded(statistics.median(parts), 2) if parts else None,
        **more,
        "rounds": {name: len(figures[name]) for name in figures if name != LIMIT and figures[name]},
    }


def beside_before(row: Row, figures: dict[str, list[float]]) -> dict[str, Any]:
    pairs = zip(figures["penstock"], figures["before"], strict=True)
    ratios = [now / then if row.more_is_better else then / now for now, then in pairs]
    return {
        "before": rounded(statistics.median(figures["before"]), 2 if row.unit == "s" else 1),
        "ratio_vs_before": rounded(statistics.median(ratios), 3),
    }


def in_turns(row: Row, figures: dict[str, list[float]], spent: dict[str, list[float]]) -> dict[str, Any]:
    """Of a row with several turns: the best of each engine, and the CPU time of a prompt, of which a turn has two."""
    best = {name: max(made) for name, made in figures.items() if name != LIMIT and made}
    others = [figure for name, figure in best.items() if name in PEERS]
    return {
        "best": {name: rounded(figure) for name, figure in best.items()},
        "best_vs_best_peer": rounded(best["penstock"] / max(others), 2) if others else None,
        "cpu_ms": {name: rounded(statistics.median(used) * 500) for name, used in spent.items() if used},
    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    names = "Penstock | llama.cpp | ratio | ik_llama.cpp | OpenVINO | transformers | best peer"
    yield f"| row | {names} | limit | of the limit |"
    yield "|---|" + "---|" * 9
    engines = ("ik_llama_cpp", "openvino", "transformers")
    keys = ("penstock", "llama_cpp", "ratio_vs_llama_cpp", *engines, "ratio_vs_best_peer")
    for row in rows:
        cells = [row.get(key) for key in (*keys, "limit", "ratio_vs_limit")]
        shown = ("" if cell is None else f"{cell:,}" for cell in cells)
        yield f"| {row['row']}: {row['unit']} | " + " | ".join(shown) + " |"


def rounded(figure: float | None, digits: int = 1) -> float | None:
    return None if figure is None else round(figure, digits)


def keep(path: Path, result: dict[str, Any], options: argparse.Namespace) -> None:
    report = json.loads(path.read_text()) if path.exists() else {"rows": []}
    rows = [row for row in report["rows"] if row["row"] != result["row"]] + [result]
    facts = {"chip": chip(), "threads": options.threads}
    report = {
        "rows": rows,
        **facts,
        "versions": versions(options.openvino),
        "date": datetime.now(UTC).date().isoformat(),
    }
    path.write_text(json.dumps(report, indent=2) + "\n")


def versions(openvino: str | None) -> dict[str, str]:
    from importlib.metadata import version

    found = {"llama_cpp": llama_cpp.LLAMA_CPP.sdist, "ik_llama_cpp": llama_cpp.IK_LLAMA_CPP.sdist}
    if importlib.util.find_spec("torch"):
        found["torch"] = version("torch")
    if importlib.util.find_spec("transformers"):
        found["transformers"] = version("transformers")
    if openvino:
        asked = "from importlib.metadata import version; print(version('openvino-genai'))"
        found["openvino"] = subprocess.run(
            [openvino, "-c", asked], capture_output=True, text=True, check=True
        ).stdout.strip()
    return found


def chip() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
