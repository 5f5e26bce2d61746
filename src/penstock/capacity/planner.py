"""From a question to its plan, one part after the other."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from penstock.capacity import answer, load, memory, parallel, speculation
from penstock.capacity.calibrate import calibrated
from penstock.capacity.device import Device
from penstock.capacity.formats import FORMATS, KV_FORMATS, Format, kv_bits
from penstock.capacity.prices import at_prices
from penstock.capacity.question import Question
from penstock.capacity.shape import Shape
from penstock.capacity.speed import Speed
from penstock.capacity.support import not_run
from penstock.errors import InvalidRequest
from penstock.store.kv_types import QUANTIZED

ACCEPTANCES = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
DRAFTS = range(1, 9)


def plan(asked: Question, shape: Shape, device: Device) -> answer.Plan:
    """`shape` and `device`: the question's `model` and `hardware`, looked up."""
    asked.check(shape)
    if why := parallel.problem(shape, device, asked.tensor_parallel):
        raise InvalidRequest(f"tensor_parallel {asked.tensor_parallel}: {why}", param="tensor_parallel")
    return _Planner(asked, shape, device).plan()


class _Planner:
    def __init__(self, asked: Question, shape: Shape, device: Device) -> None:
        self.asked = asked
        self.shape = shape
        self.device = device
        self.format = self._format(asked.weights)
        self.kv_bits = kv_bits(asked.kv, shape.head_dim, device.kind)
        self.work = load.Workload(
            asked.prompt_tokens, asked.output_tokens, int(asked.prompt_tokens * asked.cached_share)
        )
        self.asked = asked = calibrated(asked, self._speed(asked.tensor_parallel), self.work)
        self.speed = self._speed(asked.tensor_parallel)
        self.replica = load.Replica(self.speed, self.work)
        self.request_tokens = asked.prompt_tokens + asked.output_tokens
        self.concurrent = self._concurrent(asked.tensor_parallel)
        self.batch = self.replica.largest_batch(self.concurrent, asked.min_tokens_per_s)

    def plan(self) -> answer.Plan:
        replicas = self._replicas()
        return answer.Plan(
            question=self.asked,
            not_run=not_run(self.asked, self.device),
            model=self._model(),
            hardware=self.device,
            devices=self.asked.tensor_parallel,
            memory=self._memory(),
            kv=self._kv(),
            prefill=self._prefill(),
            decode=self._decode(),
            parallel=[self._degree(degree) for degree in sorted({*parallel.DEGREES, self.asked.tensor_parallel})],
            speculation=self._speculation(),
            replicas=replicas,
            cost=self._cost(replicas),
            prices=at_prices(
                self.asked,
                1 / self.replica.device_s(self.batch) if self.batch else None,
                None if replicas is None else replicas.devices,
            ),
            profiles=self._profiles(),
            notes=self._notes(),
        )

    # --- what fits

    def _format(self, name: str) -> Format:
        return self.shape.format(name, self.device.kind)

    def _speed(self, degree: int) -> Speed:
        return Speed(
            self.shape,
            self.device,
            self.format,
            self.kv_bits,
            degree,
            self.asked.step_tokens,
            self.asked.compute_efficiency,
            self.asked.bandwidth_efficiency,
        )

    def _workspace(self, degree: int) -> float:
        return memory.workspace_bytes(
            self.shape, self.asked.step_tokens, self.asked.max_sequences, self.speed.number_bytes, degree
        )

    def _room(self, degree: int) -> float:
        """Bytes for KV on one device; below 0 when not even the weights fit."""
        budget = self.device.memory_bytes * self.asked.memory_fraction
        return budget - memory.weights_bytes(self.shape, self.format, degree) - self._workspace(degree)

    def _concurrent(self, degree: int) -> int:
        fit = memory.concurrent(self.shape, self.kv_bits, max(0.0, self._room(degree)), self.request_tokens, degree)
        return min(fit, self.asked.max_sequences)

    def _model(self) -> answer.PlannedModel:
        shown = answer.PlannedModel.__struct_fields__
        return answer.PlannedModel(
            **{name: value for name, value in asdict(self.shape).items() if name in shown},
            parameters=self.shape.parameters,
            weights_bytes=memory.weights_bytes(self.shape, self.format),
        )

    def _memory(self) -> answer.Memory:
        degree = self.asked.tensor_parallel
        room, workspace = self._room(degree), self._workspace(degree)
        request = memory.request_bytes(self.shape, self.kv_bits, self.request_tokens, degree)
        budget = self.device.memory_bytes * self.asked.memory_fraction
        formats = []
        for format in map(self._format, FORMATS):
            size = memory.weights_bytes(self.shape, format, degree)
            formats.append(
                answer.FormatBytes(
                    name=format.name, bits=format.bits, weights_bytes=size, fits=size + workspace + request <= budget
                )
            )
        return answer.Memory(
            total_bytes=self.device.memory_bytes,
            budget_bytes=budget,
            weights_bytes=memory.weights_bytes(self.shape, self.format, degree),
            workspace_bytes=workspace,
            kv_bytes=max(0.0, room),
            fits=self.concurrent > 0,
            missing_bytes=0.0 if self.concurrent else request - room,
            formats=formats,
        )

    def _kv(self) -> answer.Kv:
        shape, degree = self.shape, self.asked.tensor_parallel
        room = max(0.0, self._room(degree))
        full = replace(shape, windowed_layers=0, layers=shape.layers - shape.windowed_layers)
        return answer.Kv(
            formula=kv_formula(shape, self.asked.kv, self.kv_bits),
            bytes_per_token=memory.kv_bytes(shape, self.kv_bits, 1),
            bytes_per_token_late=memory.kv_bytes(full, self.kv_bits, 1),
            request_tokens=self.request_tokens,
            request_bytes=memory.kv_bytes(shape, self.kv_bits, self.request_tokens),
            tokens=int(room // memory.kv_bytes(shape, self.kv_bits, 1, degree)),
            longest_context=memory.longest_context(shape, self.kv_bits, room, degree),
            concurrent_requests=self.concurrent,
            formats=[self._kv_format(name, room) for name in KV_FORMATS],
        )

    def _kv_format(self, name: str, room_bytes: float) -> answer.KvFormat:
        shape, degree = self.shape, self.asked.tensor_parallel
        bits = kv_bits(name, shape.head_dim, self.device.kind)
        fit = memory.concurrent(shape, bits, room_bytes, self.request_tokens, degree)
        return answer.KvFormat(
            name=name,
            bits=bits,
            bytes_per_token=memory.kv_bytes(shape, bits, 1),
            request_bytes=memory.kv_bytes(shape, bits, self.request_tokens),
            concurrent_requests=min(fit, self.asked.max_sequences),
        )

    # --- how fast

    def _prefill(self) -> answer.Prefill:
        tokens, cached = self.work.prompt_tokens, self.work.cached_tokens
        expected = self.speed.prefill(tokens, cached)
        return answer.Prefill(
            tokens=tokens - cached,
            flop=self.speed.prefill_flop(tokens, cached),
            ceiling_s=self.speed.ceiling.prefill(tokens, cached).seconds,
            expected_s=expected.seconds,
            tokens_per_s=(tokens - cached) / expected.seconds,
            bound=expected.bound,
        )

    def _batches(self) -> list[int]:
        """1, 2, 4, … and the largest that fits; 1 even if none fits: speed is of interest all the same."""
        most = max(1, self.concurrent)
        return sorted({most, *(1 << power for power in range(most.bit_length()))})

    def _decode(self) -> answer.Decode:
        context = self.work.context
        curve = []
        for batch in self._batches():
            expected, ceiling = self.speed.step(batch, context), self.speed.ceiling.step(batch, context)
            curve.append(
                answer.DecodePoint(
                    batch=batch,
                    ceiling_s=ceiling.seconds,
                    expected_s=expected.seconds,
                    ceiling_tokens_per_s=batch / ceiling.seconds,
                    tokens_per_s=batch / expected.seconds,
                    request_tokens_per_s=1 / expected.seconds,
                    bound=expected.bound,
                )
            )
        return answer.Decode(
            context_tokens=context, balance_batch=self.speed.ceiling.balance_batch(context), curve=curve
        )

    def _degree(self, degree: int) -> answer.Degree:
        if why := parallel.problem(self.shape, self.device, degree):
            return answer.Degree(degree=degree, possible=False, problem=why)
        speed, most = self._speed(degree), self._concurrent(degree)
        context = self.work.context
        alone = speed.ceiling.step(1, context).seconds
        return answer.Degree(
            degree=degree,
            possible=True,
            bandwidth_bytes_s=degree * self.device.bandwidth_bytes_s,
            ceiling_tokens_per_s=1 / alone,
            allreduce_share=speed.link_s(1, 1) / alone,
            weights_bytes=memory.weights_bytes(self.shape, self.format, degree),
            kv_bytes_per_token=memory.kv_bytes(self.shape, self.kv_bits, 1, degree),
            fits=most > 0,
            concurrent_requests=most,
            allreduce_bytes_per_token=speed.reduce_bytes(),
            prefill_s=speed.prefill(self.work.prompt_tokens, self.work.cached_tokens).seconds,
            decode_s=speed.step(1, context).seconds,
            tokens_per_s=most / speed.step(most, context).seconds if most else None,
        )

    def _speculation(self) -> answer.Speculation:
        asked, context = self.asked, self.work.context

        def gain(acceptance: float, drafts: int, batch: float = 1) -> float:
            cost = speculation.verify_cost(self.speed, batch, context, drafts)
            return speculation.speedup(acceptance, drafts, asked.draft_cost, cost)

        best, best_gain = speculation.best_drafts(self.speed, 1, context, asked.acceptance, asked.draft_cost)
        return answer.Speculation(
            acceptance=asked.acceptance,
            drafts=asked.drafts,
            draft_cost=asked.draft_cost,
            tokens_per_verification=speculation.tokens_per_verification(asked.acceptance, asked.drafts),
            verify_cost=speculation.verify_cost(self.speed, 1, context, asked.drafts),
            speedup=gain(asked.acceptance, asked.drafts),
            best_drafts=best,
            best_speedup=best_gain,
            grid=[
                answer.Gain(
                    acceptance=acceptance,
                    drafts=drafts,
                    tokens_per_verification=speculation.tokens_per_verification(acceptance, drafts),
                    speedup=gain(acceptance, drafts),
                )
                for acceptance in ACCEPTANCES
                for drafts in DRAFTS
            ],
            by_batch=[
                answer.BatchGain(batch=batch, speedup=gain(asked.acceptance, asked.drafts, batch))
                for batch in self._batches()
            ],
        )

    # --- under load

    def _replicas(self) -> answer.Replicas | None:
        asked, batch = self.asked, self.batch
        if asked.rate is None or not batch:
            return None
        stay_s = self.replica.stay_s(batch)
        count = load.replicas_for(asked.rate, batch, stay_s, utilisation=asked.utilisation, wait_p95_s=asked.wait_p95_s)
        if count is None:
            raise InvalidRequest(
                f"rate: {asked.rate} requests per second need more than {load.MAX_REPLICAS} replicas", param="rate"
            )
        share = asked.rate / count
        one = load.queue(share, batch, stay_s)
        running = self.replica.in_flight(share, batch)
        at_least_one = max(1.0, running)
        sizes = []
        for size in sorted({count, *(max(1, count + step) for step in (-2, -1, 1, 2))}):
            line = load.queue(asked.rate / size, batch, stay_s)
            sizes.append(
                answer.FleetSize(
                    replicas=size,
                    utilisation=line.utilisation,
                    stable=line.stable,
                    wait_p95_s=line.wait_p95_s if line.stable else None,
                )
            )
        return answer.Replicas(
            rate=asked.rate,
            replicas=count,
            devices=count * asked.tensor_parallel,
            batch=batch,
            capacity_per_s=batch / stay_s,
            utilisation=one.utilisation,
            in_flight=running,
            wait_probability=one.wait_probability,
            wait_mean_s=one.wait_mean_s,
            wait_p95_s=one.wait_p95_s,
            first_token_s=one.wait_mean_s + self.replica.first_token_s(at_least_one),
            request_s=one.wait_mean_s + self.replica.stay_s(at_least_one),
            sizes=sizes,
        )

    def _cost(self, replicas: answer.Replicas | None) -> answer.Cost | None:
        asked, batch = self.asked, self.batch
        if asked.hour_price is None or not batch:
            return None
        at_rate = None
        if replicas is not None:
            tokens_per_s = replicas.rate * self.request_tokens
            at_rate = load.per_million(asked.hour_price, replicas.devices, 1 / tokens_per_s)
        return answer.Cost(
            hour_price=asked.hour_price,
            input_per_million=self._price(self.replica.prefill_s / asked.prompt_tokens),
            output_per_million=self._price(self.replica.step_s(batch) / batch),
            blended_per_million=self._price(self.replica.device_s(batch) / self.request_tokens),
            at_rate_per_million=at_rate,
        )

    def _price(self, seconds_per_token: float) -> float:
        assert self.asked.hour_price is not None
        return load.per_million(self.asked.hour_price, self.asked.tensor_parallel, seconds_per_token)

    def _profiles(self) -> list[answer.Profile]:
        """Batch 1; the largest batch at which each request keeps half of its speed alone; the largest that fits."""
        if not self.batch:
            return []
        half = self.replica.request_tokens_per_s(1) / 2
        batches = {
            "latency": 1,
            "balanced": max(1, self.replica.largest_batch(self.batch, half)),
            "throughput": self.batch,
        }
        return [
            answer.Profile(
                name=name,
                batch=batch,
                first_token_s=self.replica.first_token_s(batch),
                request_tokens_per_s=self.replica.request_tokens_per_s(batch),
                tokens_per_s=self.asked.output_tokens / self.replica.device_s(batch),
                requests_per_s=1 / self.replica.device_s(batch),
                request_s=self.replica.stay_s(batch),
                cost_per_million=None
                if self.asked.hour_price is None
                else self._price(self.replica.device_s(batch) / self.request_tokens),
            )
            for name, batch in batches.items()
        ]

    def _notes(self) -> list[str]:
        asked = self.asked
        notes = [
            f"Computed, not measured: expected figures use {asked.compute_efficiency:.0%} of the device's FLOP/s and "
            f"{asked.bandwidth_efficiency:.0%} of its bandwidth, ceilings 100% of both.",
            f"Decode figures are at {self.work.context:,.0f} tokens of context: the prompt and half of the output.",
        ]
        if not self.concurrent:
            smaller = [one.degree for one in map(self._degree, parallel.DEGREES) if one.fits]
            hint = f"; it does over {min(smaller)} devices" if smaller else ""
            notes.append(f"It does not fit into the {asked.memory_fraction:.0%} of the memory that may be used{hint}.")
        elif not self.batch:
            notes.append(
                f"Even alone a request gets fewer than the {asked.min_tokens_per_s:g} tokens per second requested."
            )
        elif self.concurrent == asked.max_sequences:
            notes.append("max_sequences, not memory, bounds the requests that run at once.")
        if asked.tensor_parallel > 1 and self.device.kind == "gpu":
            notes.append("Penstock has not been timed on several GPUs: what their links take is computed.")
        if asked.tensor_parallel > self.shape.kv_heads:
            notes.append(
                f"{asked.tensor_parallel} devices share {self.shape.kv_heads} KV heads: each is kept more than once."
            )
        if self.shape.windowed_layers:
            layers = f"{self.shape.windowed_layers} of {self.shape.layers} layers"
            notes.append(f"{layers} keep the last {self.shape.window:,} tokens only.")
        return notes


def kv_formula(shape: Shape, name: str, bits: float) -> str:
    """The line of arithmetic behind the KV bytes of a token."""
    has_scale = any(kind in QUANTIZED for kind in name.split(","))
    scale = f" (with its share of the scale: {bits:g} bits)" if has_scale else ""
    size = memory.kv_bytes(shape, bits, 1)
    return (
        f"2 (K and V) × {shape.layers} layers × {shape.kv_heads} KV heads × {shape.head_dim} (head dim) × "
        f"{bits / 8:.4g} bytes{scale} = {size:,.0f} bytes per token"
    )
