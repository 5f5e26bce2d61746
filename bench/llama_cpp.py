"""llama.cpp as a peer: finds its tools, or builds them from the sources in the sdist of `llama-cpp-python`.

    python bench/llama_cpp.py          build into the cache folder (needs cmake and a C++ compiler; minutes)

Tools on the PATH or in $PENSTOCK_LLAMA_CPP are used as they are.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from penstock.store.disk import cache_root

SDIST = "llama-cpp-python==0.3.36"
TOOLS = ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-perplexity")
BUILT = cache_root() / "llama.cpp"


def tool(name: str) -> str | None:
    places = [os.environ.get("PENSTOCK_LLAMA_CPP", ""), str(BUILT / "bin"), os.environ.get("PATH", "")]
    return shutil.which(name, path=os.pathsep.join(filter(None, places)))


def available() -> bool:
    return all(map(tool, TOOLS))


def build() -> None:
    with tempfile.TemporaryDirectory() as folder:
        download = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=llama-cpp-python", SDIST]
        subprocess.run([sys.executable, *download, "--dest", folder], check=True)
        (sdist,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (source,) = Path(folder).glob("*/vendor/llama.cpp")
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF"]
        without = [f"-DLLAMA_{part}=OFF" for part in ("CURL", "BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_SERVER")]
        subprocess.run(["cmake", "-S", source, "-B", BUILT, *options, *without], check=True)
        subprocess.run(["cmake", "--build", BUILT, "--parallel", str(os.cpu_count()), "--target", *TOOLS], check=True)


class LlamaCpp:
    """An engine of bench/cpu.py; every figure is a separate process."""

    def __init__(self, model: Path, threads: int) -> None:
        self._model, self._threads = model, threads

    def close(self) -> None:
        pass

    def start_s(self) -> float:
        """16 tokens in, one out."""
        started = time.perf_counter()
        self._run("llama-bench", "-p", 16, "-n", 1, "-r", 1, "--no-warmup", "-o", "json")
        return time.perf_counter() - started

    def prefill(self, tokens: int) -> float:
        output, _ = self._run("llama-bench", "-p", tokens, "-n", 0, "-r", 1, "-o", "json")
        return float(json.loads(output)[0]["avg_ts"])

    def decode(self, prompt: int, streams: int, output: int) -> float:
        return self._decode(prompt, streams, output)[0]

    def peak_mb(self) -> float:
        return self._decode(512, 1, 16)[1]

    def _decode(self, prompt: int, streams: int, output: int) -> tuple[float, float]:
        """Tokens per second and MB. The prompt is computed once (-pps) and its keys and values are copied to every
        stream (-no-kvu): measured, decode is as fast as after separate prompts."""
        sizes = ["-c", streams * (prompt + output + 8), "-b", 2048, "-ub", 512, "-pps", "-no-kvu"]
        lengths = ["-npp", prompt, "-ntg", output, "-npl", streams]
        text, peak = self._run("llama-batched-bench", *sizes, *lengths, "--output-format", "jsonl")
        return float(json.loads(text)["speed_tg"]), peak

    def _run(self, name: str, *options: object) -> tuple[str, float]:
        return _run(name, self._model, self._threads, *options)


def requantized(model: Path, kind: str, path: Path) -> Path:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        command = [tool("llama-quantize"), "--allow-requantize", model, part, kind]
        subprocess.run([str(word) for word in command], check=True, capture_output=True)
        part.rename(path)
    return path


def perplexity(model: Path, text: Path, context: int, threads: int) -> float:
    """Over chunks of `context` tokens, of which the second half counts."""
    output, _ = _run("llama-perplexity", model, threads, "-f", text, "-c", context, "-b", context)
    return float(re.findall(r"\[\d+\]([\d.]+)", output)[-1])  # each figure is cumulative


def _run(name: str, model: Path, threads: int, *options: object) -> tuple[str, float]:
    """Its output, and its peak resident memory in MB."""
    command = [str(part) for part in (tool(name), "-m", model, "-t", threads, *options)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, used = os.wait4(process.pid, 0)
        out.seek(0)
        err.seek(0)
        if status != 0:
            raise RuntimeError(f"{name} failed: {err.read().decode()[-500:]}")
        return out.read().decode().strip(), used.ru_maxrss / 1024


if __name__ == "__main__":
    build()
    print("built" if available() else "something is missing", "in", BUILT)
