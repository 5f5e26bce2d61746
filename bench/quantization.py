"""What quantization costs: growth of perplexity, with its standard error, for each format that `penstock quantize`
writes and for each type of KV cache, on the native CPU kernels; bytes, bits of a weight and CPU time of a token beside.

    python bench/quantization.py stories15m [--groups 32,96]
    python bench/quantization.py smollm2 --groups 64 --text FILE [--text FILE] --calibration FILE

Formats are calibrated on what the model writes itself (`--text own`); those with `none` are rounded to nearest, those
with `--text` calibrated on a file. stories15m is real and in float32; it is scored on stories that it
wrote, others than those of calibration. SmolLM2 is there in Q4_1 only: its dequantized weights are the base of weights,
the file as it is that of KV types. All rows score the same chunks, so a growth is the mean of their differences, and ±
is its standard error over chunks.

Each row is appended to a file (--results) when it is done and is not taken again, so a run can be cut off and go on;
--rows chooses some of them (patterns with *), and --prepare writes their models without scoring them. The table shows
all that the file has. CPU time is that of the process, with one thread, per token of one stream after a prompt of 16:
the least of three times 48 tokens; --retime takes it again.
"""

import argparse
import fnmatch
import hashlib
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import cpu_models
import stories15m
from penstock import LLM, SamplingParams
from penstock.cli.calibration_text import OWN_CHUNKS, start_token, write_text
from penstock.quantize.folder import quantize_folder
from penstock.quantize.formats import CALIBRATED, GROUPED, TARGETS, Target
from penstock.quantize.gguf_model import GGUF_TARGETS, write_gguf_model
from penstock.store.hf_folder import read
from penstock.system.ownership import claim_process
from penstock.tokenize import Tokenizer

KV_TYPES = ("float16", "int8", "int8,int4", "int4,int8", "int4")
CALIBRATION_CHUNKS = 32
AT_ONCE = 8  # chunks between two lines of progress
COMMON: dict[str, Any] = {"prefix_caching": False, "kv_memory": "256MiB"}

Chunks = list[list[int]]
NONE: Chunks = []


@dataclass(frozen=True)
class Row:
    name: str
    base: str  # the row that it is compared with
    make: Callable[[Path], Path]  # the model, written to this folder if need be
    settings: dict[str, Any] = field(default_factory=dict)  # of LLM


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model", choices=("stories15m", "smollm2"))
    arguments.add_argument("--groups", default="32,96", help="group sizes of 4-bit formats")
    arguments.add_argument("--text", type=Path, action="append", default=[], help="for smollm2: what is scored")
    arguments.add_argument("--calibration", type=Path, help="for smollm2: the text of rows with --text")
    arguments.add_argument("--chunks", type=int, default=48, help="that are scored, of each text")
    arguments.add_argument("--length", type=int, default=240, help="tokens of a chunk")
    arguments.add_argument("--rows", default="*", help="which rows to take, as in 'int8*;kv *'; '' takes none")
    arguments.add_argument("--threads", type=int, default=2, help="on a busy machine one is best")
    arguments.add_argument("--models", type=Path, help="keep quantized models here, and use those that are there")
    arguments.add_argument("--prepare", action="store_true", help="write the models of --rows to --models, no more")
    arguments.add_argument("--retime", action="store_true", help="take the CPU time of --rows again")
    arguments.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "penstock-bench")
    arguments.add_argument("--results", type=Path, help="default: a file in the cache folder")
    options = arguments.parse_args()
    claim_process()
    torch.set_num_threads(options.threads)  # for calibration
    base = stories15m.folder(options.cache) if options.model == "stories15m" else smollm2(options.cache)
    calibration, texts = (NONE, stories(base, options)) if options.model == "stories15m" else files(base, options)
    rows = list(weight_rows(base, calibration, options)) + list(
        kv_rows(base if options.model == "stories15m" else cpu_models.smollm2())
    )
    results = Results(options.results or options.cache / f"quantization-{options.model}.jsonl", texts)
    wanted = [row for row in rows if any(fnmatch.fnmatch(row.name, one) for one in options.rows.split(";"))]
    for row in rows:
        if row not in wanted or (row.name in results.rows) != options.retime:
            continue
        with tempfile.TemporaryDirectory() as folder:
            model = row.make(options.models or Path(folder))
            if options.retime:
                results.add(row.name, {**results.rows[row.name], "cpu_ms": decode_cpu_ms(row, model)})
            elif not options.prepare:
                results.add(row.name, measure(row, model, texts, options.threads))
    results.show([row for row in rows if row.name in results.rows])


def weight_rows(base: Path, calibration: Chunks, options: argparse.Namespace) -> Iterator[Row]:
    yield Row("torch, float32", "unquantized", lambda _: base, {"dtype": "float32"})
    yield Row("unquantized", "unquantized", lambda _: base)
    texts = {"": lambda: own_text(base, options.cache), ", none": lambda: NONE, ", --text": lambda: calibration}
    for target, group in variants([int(one) for one in options.groups.split(",")]):
        for kind, text in texts.items():
            if (kind == ", none" and target in CALIBRATED) or (kind == ", --text" and not calibration):
                continue
            name = f"{target}, groups of {group}{kind}" if group else f"{target}{kind}"

            def make(
                folder: Path,
                name: str = name,
                target: Target = target,
                group: int = group,
                text: Callable[[], Chunks] = text,
            ) -> Path:
                out = folder / name.replace(" ", "-").replace(",", "")
                if not out.exists():
                    quantize_folder(read(base, "base"), out, target, group=group, text=text, progress=progress)
                return out

            yield Row(name, "unquantized", make)
    if not (base / "tokenizer.json").is_file():
        return  # a GGUF has one
    for kind in GGUF_TARGETS:

        def write(folder: Path, kind: str = kind) -> Path:
            out = folder / f"{kind}.gguf"
            if not out.exists():
                write_gguf_model(read(base, "base"), out, kind, progress)
            return out

        yield Row(kind, "unquantized", write)


def variants(groups: list[int]) -> Iterator[tuple[Target, int]]:
    """Formats of folders, with the size of their groups (0: a scale for each row)."""
    for target in TARGETS:
        if target not in GROUPED:
            yield target, 0
        if target in GROUPED or target == "int8":
            yield from ((target, group) for group in groups)


def own_text(base: Path, cache: Path) -> Chunks:
    """What `penstock quantize` has the model write, once."""
    kept = cache / f"own-text-{base.name}.json"
    if not kept.is_file():
        model = read(base, base.name)
        start = start_token(model)
        assert start is not None
        kept.write_text(json.dumps(write_text(model, start, progress)))
    chunks: Chunks = json.loads(kept.read_text())
    return chunks


def kv_rows(model: Path) -> Iterator[Row]:
    for kind in ("float32", *KV_TYPES):
        yield Row(f"kv {kind}", "kv float32", lambda _: model, {"kv_dtype": kind})


def measure(row: Row, model: Path, texts: dict[str, Chunks], threads: int) -> dict[str, Any]:
    """Mean loss of each chunk, by text; bytes of the weights; CPU time of a token in ms."""
    length = max(len(chunk) for chunks in texts.values() for chunk in chunks)
    with LLM(str(model), threads=threads, context=length + 1, **COMMON, **row.settings) as llm:
        losses = {name: list(score(llm, chunks, f"{row.name}: {name}")) for name, chunks in texts.items()}
    paths = [model] if model.is_file() else sorted(model.glob("*.safetensors"))
    size = sum(path.stat().st_size for path in paths)
    return {"losses": losses, "bytes": size, "cpu_ms": decode_cpu_ms(row, model)}


def score(llm: LLM, chunks: Chunks, what: str) -> Iterator[float]:
    """The mean loss of each chunk's tokens but the first."""
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    for start in range(0, len(chunks), AT_ONCE):
        for completion in llm.generate(chunks[start : start + AT_ONCE], params):
            yield -statistics.fmean(entry.logprob for entry in completion.prompt_logprobs[1:])
        progress(what, min(start + AT_ONCE, len(chunks)), len(chunks))


def decode_cpu_ms(row: Row, model: Path, tokens: int = 48) -> float:
    def seconds(llm: LLM, count: int) -> float:
        params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
        before = time.process_time()
        llm.generate([list(range(300, 316))], params)
        return time.process_time() - before

    with LLM(str(model), threads=1, context=128, **COMMON, **row.settings) as llm:
        seconds(llm, 8)
        return min((seconds(llm, tokens + 1) - seconds(llm, 1)) / tokens for _ in range(3)) * 1000


class Results:
    """Rows of a file that were scored on these texts."""

    def __init__(self, path: Path, texts: dict[str, Chunks]) -> None:
        self._path, self._texts = path, list(texts)
        self._digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
        lines = path.read_text().splitlines() if path.is_file() else []
        found = [line for line in map(json.loads, lines) if line["texts"] == self._digest]
        self.rows: dict[str, dict[str, Any]] = {line["row"]: line for line in found}

    def add(self, row: str, measured: dict[str, Any]) -> None:
        self.rows[row] = {"texts": self._digest, "row": row, **measured}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(self.rows[row]) + "\n")

    def show(self, rows: list[Row]) -> None:
        all_texts = [self._texts] if len(self._texts) == 1 else [self._texts, *([one] for one in self._texts)]
        titles = [one[0] if len(one) == 1 else "all" for one in all_texts]
        print(f"{'':26} {'MB':>6} {'CPU ms':>7} {'perplexity':>11} " + "".join(f"{title:>19}" for title in titles))
        for row in rows:
            line = self.rows[row.name]
            losses = self.losses(row.name, self._texts)
            facts = f"{line['bytes'] / 1e6:6.0f} {line['cpu_ms']:7.2f} {math.exp(statistics.fmean(losses)):11.4f} "
            growths = [self.growth(row, one) for one in all_texts] if row.base in self.rows else []
            print(f"{row.name:26} {facts}" + "".join(f"  {one:+8.3f}% ± {error:5.3f}" for one, error in growths))

    def growth(self, row: Row, texts: list[str]) -> tuple[float, float]:
        """Of perplexity, in percent, and its standard error."""
        pairs = zip(self.losses(row.name, texts), self.losses(row.base, texts), strict=True)
        differences = [ours - theirs for ours, theirs in pairs]
        factor = math.exp(statistics.fmean(differences))
        return (factor - 1) * 100, factor * statistics.stdev(differences) / len(differences) ** 0.5 * 100

    def losses(self, row: str, texts: list[str]) -> list[float]:
        return [loss for text in texts for loss in self.rows[row]["losses"][text]]


def stories(base: Path, options: argparse.Namespace) -> dict[str, Chunks]:
    """Sampled from the model as it is, once, with other seeds than those of calibration."""
    kept = options.cache / f"stories15m-{OWN_CHUNKS}-{options.chunks}-{options.length}.json"
    if not kept.is_file():
        tokens = options.length - 2
        seeds = range(OWN_CHUNKS, OWN_CHUNKS + options.chunks)
        params = [SamplingParams(max_tokens=tokens, temperature=1.0, seed=seed, ignore_eos=True) for seed in seeds]
        with LLM(str(base), threads=2, kv_memory="256MiB", context=options.length) as llm:
            told = [[1, *completion.tokens] for completion in llm.generate([[1]] * options.chunks, params)]
        kept.write_text(json.dumps(told))
    return {"stories": json.loads(kept.read_text())}


def files(base: Path, options: argparse.Namespace) -> tuple[Chunks, dict[str, Chunks]]:
    assert options.text, "smollm2 needs --text"
    assert options.calibration, "smollm2 needs --calibration"
    paths = read(base, "base").tokenizer
    assert paths is not None
    tokenizer = Tokenizer.load(paths)

    def chunks(path: Path, most: int) -> Chunks:
        """Spread over the whole text."""
        tokens = tokenizer.encode(path.read_text())
        starts = range(0, len(tokens) - options.length, options.length)
        step = max(1, len(starts) // most)
        return [tokens[start : start + options.length] for start in starts[::step][:most]]

    return chunks(options.calibration, CALIBRATION_CHUNKS), {
        path.stem: chunks(path, options.chunks) for path in options.text
    }


def smollm2(cache: Path) -> Path:
    """Its GGUF, dequantized by transformers."""
    out = cache / "smollm2-dequantized"
    if not (out / "config.json").is_file():
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM, AutoTokenizer

        gguf = cpu_models.smollm2()
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)
        weights = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight"}  # tied
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
        config = model.config.to_dict()
        config.pop("quantization_config", None)
        (out / "config.json").write_text(json.dumps(config, default=str))
    return out


def progress(what: str, done: int, count: int) -> None:
    print(f"\r{what} {done}/{count}   ", end="\n" if done == count else "", flush=True)


if __name__ == "__main__":
    main()
