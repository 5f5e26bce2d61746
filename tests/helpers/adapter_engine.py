"""An engine whose sequences have adapters, driven by hand: in this process, or in one of its own with its ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from penstock import composition, settings
from penstock.engine.process import ProcessEngine
from penstock.flow import Adapter, Cancel, Delta, FinishReason, Frame, Query, Reply, SamplingParams, Submit
from penstock.startup.adapters import adapter_of
from penstock.store.adapter import open_adapter


def named(path: Path) -> Adapter:
    """As requests name it."""
    return adapter_of(path.stem, open_adapter(path))


class Job(NamedTuple):
    tokens: list[int]
    adapter: Adapter | None = None
    params: SamplingParams = SamplingParams(temperature=0.0)
    max_output: int = 16
    task: Any = "generate"


class Answer:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[Any] = []
        self.last: Delta | None = None

    @property
    def end(self) -> Delta:
        assert self.last is not None
        return self.last

    @property
    def content(self) -> tuple[Any, ...]:
        """All of it that depends neither on time nor on the cache."""
        return self.tokens, self.logprobs, self.end.finish, self.end.embedding


class AdapterEngine:
    def __init__(self, model: str, **options: Any) -> None:
        self.loop, self.facts = self._open(settings.load({"model": model, **options}, environ={}))
        self.answers: dict[str, Answer] = {}
        self._count = 0

    def _open(self, loaded: settings.Settings) -> tuple[Any, dict[str, Any]]:
        return composition.engine_loop(loaded)

    def submit(self, job: Job) -> str:
        self._count += 1
        id = f"s{self._count}"
        self.answers[id] = Answer()
        self.loop.handle(
            Submit(
                id=id,
                tokens=job.tokens,
                params=job.params,
                seed=job.params.seed or 0,
                max_output=0 if job.task == "embed" else job.max_output,
                number=self._count,
                task=job.task,
                pooling="last",  # a mean is rounded where its chunks meet
                adapter=job.adapter,
            )
        )
        return id

    def cancel(self, id: str) -> None:
        self.loop.handle(Cancel(id))

    def query(self, kind: str, **arguments: Any) -> Any:
        reply = self.loop.handle(Query(1, kind, arguments))
        assert reply is not None
        assert reply.error is None, reply.error
        return reply.value

    def step(self) -> None:
        frame = self.loop.step()
        for delta in frame.deltas if frame is not None else ():
            answer = self.answers[delta.id]
            assert answer.last is None, "news of a sequence that has ended"
            answer.tokens += delta.tokens
            answer.logprobs += delta.logprobs or ()
            answer.last = delta if delta.finish is not None else None

    def finish(self) -> None:
        """Until all have ended; then nothing is left of them."""
        while self.loop.has_work:
            self.step()
        self.loop.scheduler.check_integrity()
        assert not any(one["in_use"] for one in self.query("adapters"))

    def run(self, jobs: list[Job]) -> list[Answer]:
        """All at once."""
        ids = [self.submit(job) for job in jobs]
        self.finish()
        assert all(self.answers[id].end.finish is not FinishReason.ERROR for id in ids)
        return [self.answers[id] for id in ids]

    def error(self, job: Job) -> Delta:
        """The end of a job that fails."""
        id = self.submit(job)
        self.finish()
        end = self.answers[id].end
        assert end.finish is FinishReason.ERROR
        return end


class _RemoteLoop:
    """As `EngineLoop`, as far as `AdapterEngine` needs one."""

    def __init__(self, engine: ProcessEngine) -> None:
        self._engine, self._frames = engine, list[Frame]()
        self.scheduler = self

    @property
    def has_work(self) -> bool:
        return bool(self._engine.open or self._frames)

    def handle(self, message: Submit | Cancel | Query) -> Reply | None:
        match message:
            case Submit():
                self._engine.submit(message)
            case Cancel():
                self._engine.cancel(message)
            case Query():
                self._engine.query(message)
                while True:
                    for found in self._engine.receive():
                        if isinstance(found, Reply):
                            return found
                        self._frames.append(found)
        return None

    def step(self) -> Frame:
        frames, self._frames = self._frames, []
        frames += [one for one in self._engine.receive(60.0) if isinstance(one, Frame)] if not frames else []
        return Frame([delta for frame in frames for delta in (*_unpacked(frame), *frame.deltas)])

    def check_integrity(self) -> None:
        reply = self.handle(Query(0, "check"))
        assert reply is not None
        assert (reply.value, reply.error) == (None, None)


def _unpacked(frame: Frame) -> list[Delta]:
    return [Delta(id=f"s{number}", tokens=[token]) for number, token in zip(*frame.pairs(), strict=True)]


class AdapterProcess(AdapterEngine):
    """In a process of its own: one of several ranks."""

    engine: ProcessEngine

    def _open(self, loaded: settings.Settings) -> tuple[Any, dict[str, Any]]:
        self.engine = ProcessEngine(loaded, b"secret")
        facts = self.engine.wait_ready()
        return _RemoteLoop(self.engine), facts

    def close(self) -> None:
        self.engine.close()
