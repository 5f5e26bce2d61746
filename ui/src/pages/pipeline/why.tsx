/** Why it is built so: side by sides, measured on this server or computed by the planner. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { count, duration, short } from "../../lib/format";
import { errorMessage } from "../../lib/http";
import { facts } from "../../lib/live";
import { Button, Card, Computed, Field, Problem, Table } from "../../parts/basics";
import type { Plan, Presets } from "../planner/api";
import { PrefillGrid, TensorTile } from "./why-grids";
import { Roofline, Scaling } from "./why-hardware";
import { fetchPlan, fetchPresets, measure, measured, measuring, plannedTtft, problem } from "./why-state";
import { XyPlot } from "./xy-plot";

export function Why() {
  const presets = useSignal<Presets | null>(null);
  const here = useSignal<Plan | null>(null);
  const failed = useSignal("");
  const model = facts.value?.model.name;
  useEffect(() => {
    if (!model) return;
    Promise.all([fetchPresets(), fetchPlan({ model, hardware: "this" })]).then(
      ([known, plan]) => ((presets.value = known), (here.value = plan)),
      (error: unknown) => (failed.value = errorMessage(error)),
    );
  }, [model]);
  return (
    <div class="stack why">
      {failed.value && <Problem message={failed.value} />}
      <KvCache />
      <Ttft presets={presets.value} />
      {here.value && <Roofline plan={here.value} />}
      <PrefillGrid />
      {presets.value && <Scaling presets={presets.value} />}
      {presets.value && <TensorTile presets={presets.value} />}
      <Card title="Seen live elsewhere">
        <ul class="follow-list">
          <li>
            <a href="#/batch">Static against continuous batching</a>
            <span class="muted">this server’s own requests, replayed both ways</span>
          </li>
          <li>
            <a href="#/playground">Speculation: draft, verify, accept</a>
            <span class="muted">with a model that speculates</span>
          </li>
          <li>
            <a href="#/cache">Prefix cache</a>
            <span class="muted">every KV block, and why a prompt missed</span>
          </li>
        </ul>
      </Card>
    </div>
  );
}

function Measure() {
  const abort = useRef<AbortController | null>(null);
  useEffect(() => () => abort.current?.abort(), []);
  return (
    <>
      <Button
        icon="play"
        disabled={measuring.value}
        onClick={() => {
          abort.current = new AbortController();
          void measure(abort.current.signal);
        }}
      >
        {measuring.value ? "Measuring" : "Measure here"}
      </Button>
      {problem.value && <Problem message={problem.value} />}
    </>
  );
}

/** Without a cache each token computes all tokens before it again. */
function KvCache() {
  const most = 256;
  const lengths = Array.from({ length: 17 }, (_, at) => Math.max(1, at * (most / 16)));
  const found = measured.value;
  return (
    <Card
      title="With and without KV cache"
      aside={<Measure />}
      note="Attention reads keys and values of all earlier tokens. Kept, a new token costs one token’s work; thrown away, it costs that of the whole sequence: n tokens take n against n(n + 1) ÷ 2."
    >
      <div class="inside-stream">
        <div>
          <h3>
            Tokens computed for n output tokens <Computed />
          </h3>
          <XyPlot
            label={`Tokens computed: ${most} with a cache, ${(most * (most + 1)) / 2} without, for ${most} tokens`}
            xLabel="output tokens"
            x={short}
            y={short}
            series={[
              { label: "without cache: n(n + 1) ÷ 2", colour: "preempted", points: lengths.map((n) => [n, (n * (n + 1)) / 2]) },
              { label: "with cache: n", colour: "decode", points: lengths.map((n) => [n, n]) },
            ]}
          />
        </div>
        <div>
          <h3>Time of the next token at length n, measured here</h3>
          {found.length > 1 ? (
            <XyPlot
              label="Measured time of one further token with and without cached keys and values"
              xLabel="tokens before it"
              x={short}
              y={duration}
              series={[
                { label: "all recomputed (prefill of n)", colour: "preempted", points: found.map((one) => [one.tokens, one.prefill_us]) },
                { label: "with cache (decode)", colour: "decode", points: found.map((one) => [one.tokens, one.token_us]) },
              ]}
            />
          ) : (
            <p class="muted">Not measured yet: seven requests of 16 to 1,024 random tokens, nine output tokens each.</p>
          )}
        </div>
      </div>
      {found.length > 0 && (
        <Table label="Measured by prompt length" class="why-measured">
          <thead>
            <tr>
              <th class="num">Prompt</th>
              <th class="num">TTFT</th>
              <th class="num">Prefill</th>
              <th class="num">Next token, cached</th>
              <th class="num">Recomputing costs</th>
            </tr>
          </thead>
          <tbody>
            {found.map((one) => (
              <tr key={one.tokens} data-tokens={one.tokens}>
                <td class="num">{count(one.tokens)}</td>
                <td class="num">{duration(one.ttft_us)}</td>
                <td class="num">{duration(one.prefill_us)}</td>
                <td class="num">{duration(Math.round(one.token_us))}</td>
                <td class="num">{one.token_us ? `${(one.prefill_us / one.token_us).toFixed(1)}×` : "–"}</td>
              </tr>
            ))}
          </tbody>
        </Table>
      )}
    </Card>
  );
}

function Ttft({ presets }: { presets: Presets | null }) {
  const hardware = useSignal("h100-sxm");
  const planned = useSignal<(readonly [number, number])[]>([]);
  const failed = useSignal("");
  const model = facts.value?.model.name;
  useEffect(() => {
    if (model)
      plannedTtft(model, hardware.value).then(
        (points) => ((planned.value = points), (failed.value = "")),
        (error: unknown) => (failed.value = errorMessage(error)),
      );
  }, [model, hardware.value]);
  const found = measured.value;
  return (
    <Card title="TTFT by prompt length" note="The first token waits for the whole prompt: prefill ≈ 2 × parameters × tokens ÷ FLOP/s, and attention grows with the square.">
      <div class="inside-stream">
        <div>
          <h3>Measured on this server</h3>
          {found.length > 1 ? (
            <XyPlot label="Measured TTFT by prompt length" xLabel="prompt tokens" x={short} y={duration} series={[{ label: "TTFT", colour: "prefill", points: found.map((one) => [one.tokens, one.ttft_us]) }]} />
          ) : (
            <p class="muted">Measure above.</p>
          )}
        </div>
        <div>
          <h3>
            This model on other hardware <Computed />
          </h3>
          <Field label="Hardware">
            {(id) => (
              <select id={id} value={hardware.value} onChange={(event) => (hardware.value = event.currentTarget.value)}>
                {(presets?.hardware ?? []).map(({ name, label }) => (
                  <option key={name} value={name}>
                    {label}
                  </option>
                ))}
              </select>
            )}
          </Field>
          {failed.value && <Problem message={failed.value} />}
          {planned.value.length > 1 && (
            <XyPlot label="Computed prefill time by prompt length" xLabel="prompt tokens" x={short} y={duration} series={[{ label: "prefill, expected by the planner", colour: "prefill", points: [...planned.value] }]} />
          )}
        </div>
      </div>
    </Card>
  );
}
