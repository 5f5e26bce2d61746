"""The engine in its own process: what happens when it, or its frontend, dies."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import tiny_models
from helpers.server_process import PATIENCE_S
from penstock import LLM, SamplingParams, settings
from penstock.engine.process import ProcessEngine
from penstock.errors import EngineDied, InvalidRequest, ModelInvalid, ModelNotFound
from penstock.flow import FinishReason

ENDLESS = SamplingParams(temperature=0.0, max_tokens=tiny_models.ENDLESS_TOKENS, ignore_eos=True)


@pytest.fixture
def llm(tiny: Path) -> Iterator[LLM]:
    with LLM(str(tiny), isolate=True, threads=1, kv_memory="100MB") as llm:
        yield llm


def kill(llm: LLM) -> None:
    llm._driver.engine.process.send_signal(signal.SIGKILL)  # type: ignore[attr-defined]


def test_death_under_load_ends_every_request_at_once(llm: LLM) -> None:
    streams = [llm.stream([5, 6, place], ENDLESS) for place in range(4)]
    for stream in streams:
        next(stream)
    kill(llm)
    for stream in streams:
        with pytest.raises(EngineDied, match="signal 9"):
            list(stream)
    with pytest.raises(EngineDied):
        llm.generate([5, 6], ENDLESS)
    with pytest.raises(EngineDied):
        llm.stats()


def test_death_while_a_batch_waits(llm: LLM) -> None:
    stream = llm.stream([5, 6], ENDLESS)
    next(stream)
    kill(llm)
    with pytest.raises(EngineDied):
        llm.generate([[5, 6, 7]] * 8, ENDLESS)


def test_the_terminals_ctrl_c_does_not_reach_it(llm: LLM) -> None:
    """From its first moment on: a signal while it is still importing would be a traceback."""
    assert os.getpgid(llm._driver.engine.process.pid) != os.getpgid(0)  # type: ignore[attr-defined]


def test_what_keeps_an_engine_from_starting_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        LLM(str(tmp_path / "nowhere"), isolate=True)
    broken = tmp_path / "broken"
    tiny_models.make("llama", broken)
    weights = next(broken.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelInvalid, match="truncated"):
        LLM(str(broken), isolate=True)


def test_bad_requests_do_not_reach_the_engine(llm: LLM) -> None:
    with pytest.raises(InvalidRequest):
        llm.generate([100_000], ENDLESS)
    assert llm.generate([5, 6], SamplingParams(max_tokens=2, ignore_eos=True)).finish is FinishReason.LENGTH
    llm.check_integrity()


FRONTEND = """
import os, sys, time
from penstock import LLM, SamplingParams, settings
from penstock.engine.process import ProcessEngine
{body}
"""
IDLE = """
llm = LLM({tiny!r}, isolate=True, threads=1)
pid = llm._driver.engine.process.pid
"""
SITUATIONS = {
    "loading": """
engine = ProcessEngine(settings.load({{"model": {tiny!r}}}, environ={{}}), b"secret")
print(engine.process.pid, flush=True)
time.sleep(600)
""",
    "idle": IDLE
    + """
print(pid, flush=True)
time.sleep(600)
""",
    "busy": IDLE
    + """
print(pid, flush=True)
while True:
    llm.generate([[5, 6]] * 8, SamplingParams(max_tokens=64, ignore_eos=True))
""",
    # What it has forked holds its open files, the engine's lifeline among them.
    "forked": IDLE
    + """
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print(pid, flush=True)
time.sleep(600)
""",
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_engine_ends_with_its_frontend(tiny: Path, situation: str) -> None:
    """Also when the frontend is killed and cannot say goodbye, whatever the engine does."""
    script = FRONTEND.format(body=SITUATIONS[situation].format(tiny=str(tiny)))
    frontend = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert frontend.stdout is not None
    watch = os.pidfd_open(int(frontend.stdout.readline()))
    frontend.kill()
    frontend.wait()
    ended = select.select([watch], [], [], PATIENCE_S)[0]
    frontend.communicate()
    assert ended, "the engine process outlived its frontend"
    os.close(watch)


def test_nobody_waits_without_end_for_a_process_that_does_not_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    engine = ProcessEngine(settings.load(environ={}), b"secret")
    ends = engine.process.wait

    def hangs(timeout: float | None = None) -> int:
        assert timeout is not None
        raise subprocess.TimeoutExpired("engine", timeout)

    monkeypatch.setattr(engine.process, "wait", hangs)
    with pytest.raises(EngineDied, match="does not exit"):
        engine.wait_ready()
    ends()


def test_an_engine_that_dies_before_it_answers(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EngineDied, match="exit code 1"):
        LLM(str(tiny), isolate=True)
