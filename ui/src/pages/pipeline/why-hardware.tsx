/** Arithmetic against bandwidth: the roofline of this machine, and what more GPUs bring. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { duration, percent, short } from "../../lib/format";
import { errorMessage } from "../../lib/http";
import { Card, Computed, Field, Problem, Table } from "../../parts/basics";
import type { Plan, Presets } from "../planner/api";
import { fetchPlan } from "./why-state";
import { XyPlot } from "./xy-plot";

const BATCHES = [1, 4, 16, 64, 256];

/** FLOP per byte of steps of this model, below the machine's roof. */
export function Roofline({ plan }: { plan: Plan }) {
  const { flops, bandwidth_bytes_s: bandwidth } = plan.hardware;
  const balance = flops / bandwidth;
  const [parameters, weights] = [plan.model.parameters, plan.memory.weights_bytes];
  const kv = plan.kv.bytes_per_token * plan.decode.context_tokens;
  const intensity = (tokens: number, sequences: number): number => (2 * parameters * tokens) / (weights + sequences * kv);
  const roof = (value: number): number => Math.min(flops, value * bandwidth);
  const steps = [...BATCHES.map((batch) => [`decode, batch ${batch}`, intensity(batch, batch)] as const), ["prefill, 512 tokens", intensity(512, 1)] as const];
  const span = [Math.min(0.3, ...steps.map(([, one]) => one)), Math.max(balance * 8, ...steps.map(([, one]) => one))] as const;
  return (
    <Card
      title="Why decode is memory-bound"
      aside={<Computed />}
      note={`A machine that does ${short(flops)}FLOP/s and reads ${short(bandwidth)}B/s is balanced at ${short(balance)} FLOP per byte. A step below that waits for memory. A decode step reads all weights for two FLOP per weight and sequence: batching moves it to the right.`}
    >
      <XyPlot
        label={`Roofline of ${plan.hardware.label}: balance at ${short(balance)} FLOP per byte; decode of one sequence has ${short(steps[0]![1])}`}
        xLabel="FLOP per byte read (logarithmic)"
        x={short}
        y={(value) => `${short(value)}FLOP/s`}
        log
        series={[
          { label: `roof of ${plan.hardware.label}`, colour: "output", points: [[span[0], roof(span[0])], [balance, flops], [span[1], flops]] },
          { label: "decode, batch 1 to 256", colour: "decode", dots: true, points: steps.slice(0, -1).map(([, one]) => [one, roof(one)]) },
          { label: "prefill of 512 tokens", colour: "prefill", dots: true, points: steps.slice(-1).map(([, one]) => [one, roof(one)]) },
        ]}
      />
      <Table label="FLOP per byte by step">
        <thead>
          <tr>
            <th>Step</th>
            <th class="num">FLOP per byte</th>
            <th class="num">Arithmetic used, at most</th>
            <th>Bound by</th>
          </tr>
        </thead>
        <tbody>
          {steps.map(([name, value]) => (
            <tr key={name}>
              <td>{name}</td>
              <td class="num">{short(value)}</td>
              <td class="num">{percent(roof(value) / flops)}</td>
              <td>{value < balance ? "memory bandwidth" : "arithmetic"}</td>
            </tr>
          ))}
        </tbody>
      </Table>
      <p class="small muted">
        FLOP = 2 × parameters × tokens; bytes = weights ({short(weights)}B) + KV of {short(plan.decode.context_tokens)} tokens per sequence. From <code>POST /plan</code>.
      </p>
    </Card>
  );
}

/** Tensor parallelism: each GPU holds a part of every matrix, and parts of sums are exchanged twice per layer. */
export function Scaling({ presets }: { presets: Presets }) {
  const model = useSignal("llama-3.1-70b");
  const hardware = useSignal("h100-sxm");
  const plan = useSignal<Plan | null>(null);
  const failed = useSignal("");
  useEffect(() => {
    fetchPlan({ model: model.value, hardware: hardware.value }).then(
      (found) => ((plan.value = found), (failed.value = "")),
      (error: unknown) => (failed.value = errorMessage(error)),
    );
  }, [model.value, hardware.value]);
  const found = plan.value;
  const weights = found?.memory.weights_bytes ?? 0;
  const bandwidth = found?.hardware.bandwidth_bytes_s ?? 1;
  const rows = (found?.parallel ?? []).filter((one) => one.possible && one.decode_s);
  const ceiling = (degree: number): number => (degree * bandwidth) / weights;
  const alone = rows.find(({ degree }) => degree === 1)?.decode_s ?? 0; // reading and computing, which N GPUs share
  const exchanged = (degree: number, step: number): number => Math.max(0, 1 - alone / degree / step);
  const picker = (label: string, value: { value: string }, options: { name: string; label?: string }[]) => (
    <Field label={label}>
      {(id) => (
        <select id={id} value={value.value} onChange={(event) => (value.value = event.currentTarget.value)}>
          {options.map((one) => (
            <option key={one.name} value={one.name}>
              {one.label ?? one.name}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
  return (
    <Card
      title="Tensor parallelism by GPU count"
      aside={<Computed />}
      note="N GPUs read the weights N times as fast: the ceiling of one stream is N × bandwidth ÷ weights. But every layer ends in two all-reduces, whose time does not shrink. On GPUs the engine does not run tensor-parallel yet: this is the planner’s arithmetic."
    >
      <div class="why-pick">
        {picker("Model", model, presets.models)}
        {picker("GPU", hardware, presets.hardware.filter(({ link_bytes_s }) => link_bytes_s))}
      </div>
      {failed.value && <Problem message={failed.value} />}
      {rows.length > 0 && (
        <Table label="Scaling by GPU count" class="why-scaling">
          <thead>
            <tr>
              <th class="num">GPUs</th>
              <th>Weights fit</th>
              <th class="num">Bandwidth</th>
              <th class="num">Ceiling tok/s, one stream</th>
              <th class="num">Decode step, expected</th>
              <th class="num">All-reduce, of the step</th>
              <th class="num">Sent per token</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((one) => (
              <tr key={one.degree} data-degree={one.degree}>
                <td class="num">{one.degree}</td>
                <td>{one.fits ? "yes" : "no"}</td>
                <td class="num">{short(one.degree * bandwidth)}B/s</td>
                <td class="num">{short(ceiling(one.degree))}</td>
                <td class="num">{duration(Math.round(one.decode_s! * 1e6))}</td>
                <td class="num">{percent(exchanged(one.degree, one.decode_s!))}</td>
                <td class="num">{one.allreduce_bytes_per_token ? `${short(one.allreduce_bytes_per_token)}B` : "–"}</td>
              </tr>
            ))}
          </tbody>
        </Table>
      )}
    </Card>
  );
}
