"""llama.cpp and its fork ik_llama.cpp as peers: finds their tools, or builds them from the sources in the sdists of
`llama-cpp-python` and `ik-llama-cpp-python`.

    python bench/llama_cpp.py [ik]          build into the cache folder (needs cmake and a C++ compiler; minutes)

Tools of llama.cpp on the PATH or in $PENSTOCK_LLAMA_CPP are used as they are, those of ik_llama.cpp in
$PENSTOCK_IK_LLAMA_CPP.
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
from dataclasses import dataclass
from pathlib import Path

from penstock.store.disk import cache_root


@dataclass(frozen=True)
class Build:
    """Where tools come from."""

    sdist: str  # of the package that has the sources
    source: str  # their folder in it
    variable: str  # environment variable with the folder of tools
    tools: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return cache_root() / Path(self.source).name

    def tool(self, name: str) -> str | None:
        places = [os.environ.get(self.variable, ""), str(self.folder / "bin")]
        if self is LLAMA_CPP:
            places.append(os.environ.get("PATH", ""))
        return shutil.which(name, path=os.pathsep.join(filter(None, places)))

    def available(self) -> bool:
        return all(map(self.tool, self.tools))

    def make(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            package = self.sdist.partition("==")[0]
            download = ["-m", "pip", "download", "--quiet", "--no-deps", f"--no-binary={package}", self.sdist]
            subprocess.run([sys.executable, *download, "--dest", folder], check=True)
            (sdist,) = Path(folder).glob("*.tar.gz")
            with tarfile.open(sdist) as archive:
                archive.extractall(folder, filter="data")
            (source,) = Path(folder).glob(f"*/{self.source}")
            _complete(source)
            options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF"]
            examples = "-DLLAMA_BUILD_EXAMPLES=ON"  # some of the tools are examples
            without = [f"-DLLAMA_{part}=OFF" for part in ("CURL", "BUILD_TESTS", "BUILD_SERVER")]
            cores = str(os.cpu_count())
            subprocess.run(["cmake", "-S", source, "-B", self.folder, *options, *without, examples], check=True)
            command = ["cmake", "--build", self.folder, "--parallel", cores, "--target", *self.tools]
            subprocess.run(command, check=True)


LLAMA_CPP = Build(
    "llama-cpp-python==0.3.36",
    "vendor/llama.cpp",
    "PENSTOCK_LLAMA_CPP",
    ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-perplexity", "llama-lookup"),
)
IK_LLAMA_CPP = Build(
    "ik-llama-cpp-python==0.1.5",
    "vendor/ik_llama.cpp",
    "PENSTOCK_IK_LLAMA_CPP",
    ("llama-bench", "llama-batched-bench"),
)


def _complete(source: Path) -> None:
    """The fork's sdist lacks the script that fills in the build's number and commit."""
    script = source / "common" / "cmake" / "build-info-gen-cpp.cmake"
    if not script.exists() and (source / "common" / "build-info.cpp.in").exists():
        script.parent.mkdir(exist_ok=True)
        script.write_text("set(BUILD_NUMBER 0)\nconfigure_file(common/build-info.cpp.in common/build-info.cpp)\n")


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
        return _run(LLAMA_CPP, name, self._model, self._threads, *options)


class IkLlamaCpp(LlamaCpp):
    """The fork, with flash attention and weights repacked at the start, as it is fastest."""

    def start_s(self) -> float:
        started = time.perf_counter()
        self._run("llama-bench", "-p", 16, "-n", 1, "-r", 1, "-w", 0, "-fa", 1, "-rtr", 1, "-o", "json")
        return time.perf_counter() - started

    def prefill(self, tokens: int) -> float:
        output, _ = self._run("llama-bench", "-p", tokens, "-n", 0, "-r", 1, "-fa", 1, "-rtr", 1, "-o", "json")
        return float(json.loads(output)[0]["avg_ts"])

    def _decode(self, prompt: int, streams: int, output: int) -> tuple[float, float]:
        """Its tool writes a table: of its columns, the eighth is the speed of the output."""
        sizes = ["-c", streams * (prompt + output + 8), "-b", 2048, "-ub", 512, "-pps", "-fa", "on", "-rtr"]
        lengths = ["-npp", prompt, "-ntg", output, "-npl", streams]
        text, peak = self._run("llama-batched-bench", *sizes, *lengths)
        (row,) = re.findall(r"^\|\s*\d.*$", text, re.MULTILINE)
        return float(row.split("|")[8]), peak

    def _run(self, name: str, *options: object) -> tuple[str, float]:
        return _run(IK_LLAMA_CPP, name, self._model, self._threads, *options)


def requantized(model: Path, kind: str, path: Path) -> Path:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        command = [LLAMA_CPP.tool("llama-quantize"), "--allow-requantize", model, part, kind]
        subprocess.run([str(word) for word in command], check=True, capture_output=True)
        part.rename(path)
    return path


def perplexity(model: Path, text: Path, context: int, threads: int) -> float:
    """Over chunks of `context` tokens, of which the second half counts."""
    output, _ = _run(LLAMA_CPP, "llama-perplexity", model, threads, "-f", text, "-c", context, "-b", context)
    return float(re.findall(r"\[\d+\]([\d.]+)", output)[-1])  # each figure is cumulative


def _run(build: Build, name: str, model: Path, threads: int, *options: object) -> tuple[str, float]:
    """Its output, or what it wrote to standard error if there is none, and its peak resident memory in MB."""
    command = [str(part) for part in (build.tool(name), "-m", model, "-t", threads, *options)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=folder)  # the fork leaves a log there
        _, status, used = os.wait4(process.pid, 0)
        out.seek(0)
        err.seek(0)
        if status != 0:
            raise RuntimeError(f"{name} failed: {err.read().decode()[-500:]}")
        return (out.read().decode().strip() or err.read().decode()), used.ru_maxrss / 1024


def lookup(
    tool: str, weights: Path, prompt: str, *, drafts: int, tokens: int, threads: int
) -> tuple[int, float, int, int]:
    """llama.cpp's greedy answer to a prompt with its prompt lookup: tokens, the seconds of their decoding, how many
    were drafted and how many of those accepted."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(prompt)
        file.flush()
        command = [tool, "-m", str(weights), "-f", file.name, "-n", str(tokens), "--temp", "0", "-c", "4096"]
        command += ["-t", str(threads), "-tb", str(threads), "--spec-draft-n-max", str(drafts), "--log-colors", "off"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    said = done.stderr + done.stdout
    decoded = re.search(r"decoded +(\d+) tokens in +([\d.]+) seconds", said)
    counts = {name: re.search(rf"{name} += +(\d+)", said) for name in ("n_drafted", "n_accept")}
    if decoded is None or None in counts.values():
        raise RuntimeError(f"{tool} said nothing of its speed: {said[-500:]}")
    drafted, accepted = (int(found[1]) for found in counts.values() if found is not None)
    return int(decoded[1]), float(decoded[2]), drafted, accepted


if __name__ == "__main__":
    chosen = IK_LLAMA_CPP if sys.argv[1:] == ["ik"] else LLAMA_CPP
    chosen.make()
    print("built" if chosen.available() else "something is missing", "in", chosen.folder)
