/** The plan: memory, speed, replicas, cost. */
import { bytes, count, percent, seconds, short } from "../../lib/format";
import { Badge, Button, Card, Computed, Stat, Table } from "../../parts/basics";
import type { Plan } from "./api";
import { setNumber } from "./state";

const rate = (value: number | null | undefined): string => (value == null ? "–" : `${value >= 1e3 && value < 1e4 ? count(value) : short(value)} tok/s`);
const money = (value: number | null | undefined): string => (value == null ? "–" : value >= 0.01 ? value.toFixed(2) : value.toPrecision(2));

export function Results({ plan }: { plan: Plan }) {
  return (
    <>
      <Memory plan={plan} />
      {plan.measured && <Measured measured={plan.measured} />}
      <Speed plan={plan} />
      <Profiles plan={plan} />
      {plan.replicas && <Replicas plan={plan.replicas} />}
      {plan.cost && <Cost cost={plan.cost} />}
      <Parallel plan={plan} />
      {plan.speculation && <Speculation plan={plan.speculation} />}
      {plan.notes.length > 0 && (
        <Card title="Assumptions">
          <ul class="notes">
            {plan.notes.map((note) => (
              <li key={note}>{note}</li>
            ))}
          </ul>
        </Card>
      )}
    </>
  );
}

function Memory({ plan: { memory, kv, model } }: { plan: Plan }) {
  const share = (part: number | null): string => `${(100 * (part ?? 0)) / Math.max(memory.total_bytes, memory.weights_bytes + memory.workspace_bytes)}%`;
  return (
    <Card title="Memory" aside={<Computed />}>
      <dl class="stats">
        <Stat name="Weights" value={bytes(model.weights_bytes)} detail={`${short(model.parameters)} parameters`} />
        <Stat name="KV per token" value={<span data-plan="kv_bytes_per_token">{bytes(kv.bytes_per_token)}</span>} detail={`${model.layers} layers, ${model.kv_heads} KV heads of ${model.head_dim}`} />
        <Stat name="KV per request" value={bytes(kv.request_bytes)} detail={`${count(kv.request_tokens)} tokens`} />
        <Stat name="Longest context" value={count(kv.longest_context)} detail={`model maximum: ${count(model.context)}`} />
        <Stat name="Concurrent requests" value={<span data-plan="concurrent">{count(kv.concurrent_requests)}</span>} detail={`${short(kv.tokens)} tokens of KV`} />
      </dl>
      <div class="memory-bar" role="img" aria-label={`${bytes(memory.weights_bytes)} of weights, ${bytes(memory.workspace_bytes)} of workspace and ${bytes(memory.kv_bytes)} of KV cache in ${bytes(memory.total_bytes)}`}>
        <i data-colour="prefill" style={{ width: share(memory.weights_bytes) }} />
        <i data-colour="output" style={{ width: share(memory.workspace_bytes) }} />
        <i data-colour="cached" style={{ width: share(memory.kv_bytes) }} />
      </div>
      <ul class="legend">
        <li>
          <i data-colour="prefill" /> Weights <b>{bytes(memory.weights_bytes)}</b>
        </li>
        <li>
          <i data-colour="output" /> Workspace <b>{bytes(memory.workspace_bytes)}</b>
        </li>
        <li>
          <i data-colour="cached" /> KV cache <b>{bytes(memory.kv_bytes)}</b>
        </li>
        <li>
          of <b>{bytes(memory.total_bytes)}</b> per device
        </li>
      </ul>
      {!memory.fits && (
        <p class="problem" role="alert">
          Does not fit: {bytes(memory.missing_bytes)} missing. Use a smaller weight format or more devices.
        </p>
      )}
      <p class="small muted formats">Weight formats; green ones fit:</p>
      <div class="row">
        {memory.formats.map((format) => (
          <Badge key={format.name} tone={format.fits ? "good" : "plain"} title={format.fits ? "Fits" : "Does not fit"}>
            {format.name} {bytes(format.weights_bytes)}
          </Badge>
        ))}
      </div>
    </Card>
  );
}

function Measured({ measured }: { measured: NonNullable<Plan["measured"]> }) {
  const shown = (value: number | null, unit: string): string => (value === null ? "–" : unit === "bytes" ? bytes(value) : unit === "s" ? seconds(value) : rate(value));
  const calibrate = (): void => {
    if (measured.compute_efficiency) setNumber("compute_efficiency", Number(measured.compute_efficiency.toPrecision(3)));
    if (measured.bandwidth_efficiency) setNumber("bandwidth_efficiency", Number(measured.bandwidth_efficiency.toPrecision(3)));
  };
  return (
    <Card
      title="Theory vs. this server"
      aside={
        <>
          <Badge tone="good">Measured</Badge>
          <Button onClick={calibrate} disabled={!measured.compute_efficiency && !measured.bandwidth_efficiency}>
            Calibrate
          </Button>
        </>
      }
      note={`From ${count(measured.requests)} requests of ${count(measured.prompt_tokens)} prompt and ${count(measured.output_tokens)} output tokens on average. The ceiling is the hardware limit for the same work.`}
    >
      <Table label="Theory vs. this server">
        <thead>
          <tr>
            <th>Figure</th>
            <th class="num">Ceiling</th>
            <th class="num">Measured</th>
            <th class="num">Ratio</th>
          </tr>
        </thead>
        <tbody>
          {measured.rows.map((row) => (
            <tr key={row.name}>
              <td>
                <span class="sentence">{row.label}</span>
              </td>
              <td class="num">{shown(row.theory, row.unit)}</td>
              <td class="num">{shown(row.measured, row.unit)}</td>
              <td class="num">{percent(row.ratio, 0)}</td>
            </tr>
          ))}
        </tbody>
      </Table>
    </Card>
  );
}

function Speed({ plan: { prefill, decode } }: { plan: Plan }) {
  const most = Math.max(1e-9, ...decode.curve.map((point) => point.ceiling_tokens_per_s));
  return (
    <Card title="Speed" aside={<Computed />}>
      {prefill && (
        <dl class="stats">
          <Stat name="Prefill" value={seconds(prefill.expected_s)} detail={`${count(prefill.tokens)} tokens; ceiling ${seconds(prefill.ceiling_s)}`} />
          <Stat name="Prefill rate" value={rate(prefill.tokens_per_s)} detail={`bound by ${prefill.bound}`} />
          <Stat name="Compute-bound from" value={decode.balance_batch == null ? "never" : `batch ${count(decode.balance_batch)}`} detail={decode.balance_batch == null ? "bandwidth-bound at every batch size" : "bandwidth-bound below"} />
        </dl>
      )}
      {decode.curve.length > 0 && (
        <Table label="Decode by batch size" class="decode">
          <thead>
            <tr>
              <th class="num">Batch</th>
              <th>Generation, total</th>
              <th class="num">Per request</th>
              <th class="num">Step time</th>
              <th>Bound by</th>
            </tr>
          </thead>
          <tbody>
            {decode.curve.map((point) => (
              <tr key={point.batch}>
                <td class="num">{count(point.batch)}</td>
                <td>
                  <span class="bar-cell two">
                    <span class="under">
                      <i class="ceiling" style={{ width: `${(point.ceiling_tokens_per_s / most) * 100}%` }} />
                      <i style={{ width: `${(point.tokens_per_s / most) * 100}%` }} />
                    </span>
                    <b>{rate(point.tokens_per_s)}</b>
                  </span>
                </td>
                <td class="num">{short(point.request_tokens_per_s)}</td>
                <td class="num">{seconds(point.expected_s)}</td>
                <td>{point.bound}</td>
              </tr>
            ))}
          </tbody>
        </Table>
      )}
    </Card>
  );
}

const PROFILES: Record<string, string> = { latency: "Latency", balanced: "Balanced", throughput: "Throughput" };

function Profiles({ plan: { profiles } }: { plan: Plan }) {
  if (!profiles.length) return null;
  return (
    <Card title="Profiles" aside={<Computed />} note="The same hardware, tuned for latency or for throughput.">
      <div class="profiles">
        {profiles.map((one) => (
          <dl key={one.name}>
            <dt>{PROFILES[one.name] ?? one.name}</dt>
            <dd class="big">{rate(one.tokens_per_s)}</dd>
            <dd>batch {count(one.batch)}, {short(one.request_tokens_per_s)} tok/s per request</dd>
            <dd>TTFT {seconds(one.first_token_s)}</dd>
            <dd>request latency {seconds(one.request_s)}</dd>
            <dd>{short(one.requests_per_s)} requests/s</dd>
            {one.cost_per_million !== null && <dd>{money(one.cost_per_million)} per million tokens</dd>}
          </dl>
        ))}
      </div>
    </Card>
  );
}

function Replicas({ plan }: { plan: NonNullable<Plan["replicas"]> }) {
  return (
    <Card title={`Replicas for ${short(plan.rate)} requests per second`} aside={<Computed />}>
      <dl class="stats">
        <Stat name="Replicas" value={count(plan.replicas)} detail={`${count(plan.devices)} devices`} />
        <Stat name="Utilization" value={percent(plan.utilisation, 0)} detail={`${count(plan.in_flight)} requests in flight`} />
        <Stat name="Queue wait p95" value={seconds(plan.wait_p95_s)} detail={`${percent(plan.wait_probability)} of requests wait`} />
        <Stat name="Request latency" value={seconds(plan.request_s)} detail={`TTFT ${seconds(plan.first_token_s)}`} />
      </dl>
      <Table label="Replicas">
        <thead>
          <tr>
            <th class="num">Replicas</th>
            <th class="num">Utilization</th>
            <th class="num">Queue wait p95</th>
          </tr>
        </thead>
        <tbody>
          {plan.sizes.map((size) => (
            <tr key={size.replicas} data-chosen={size.replicas === plan.replicas}>
              <td class="num">{size.replicas === plan.replicas ? <b>{size.replicas}</b> : size.replicas}</td>
              <td class="num">{percent(size.utilisation, 0)}</td>
              <td class="num">{size.stable ? seconds(size.wait_p95_s) : "unstable: queue grows without bound"}</td>
            </tr>
          ))}
        </tbody>
      </Table>
    </Card>
  );
}

function Cost({ cost }: { cost: NonNullable<Plan["cost"]> }) {
  return (
    <Card title="Cost per million tokens" aside={<Computed />} note={`Unit: that of the price, ${cost.hour_price} per device-hour. Assumes full utilization unless a request rate is set.`}>
      <dl class="stats">
        <Stat name="Input" value={money(cost.input_per_million)} />
        <Stat name="Output" value={money(cost.output_per_million)} />
        <Stat name="Blended" value={money(cost.blended_per_million)} />
        {cost.at_rate_per_million !== null && <Stat name="At the request rate" value={money(cost.at_rate_per_million)} detail="idle time included" />}
      </dl>
    </Card>
  );
}

function Parallel({ plan: { parallel } }: { plan: Plan }) {
  return (
    <Card title="Tensor parallelism" aside={<Computed />} note="Weights and KV heads are sharded over devices, which all-reduce activations in every layer.">
      <Table label="Tensor parallelism">
        <thead>
          <tr>
            <th class="num">Devices</th>
            <th class="num">Weights per device</th>
            <th class="num">Concurrent requests</th>
            <th class="num">Prefill</th>
            <th class="num">Decode step</th>
            <th class="num">Throughput</th>
            <th class="num">All-reduce per token</th>
          </tr>
        </thead>
        <tbody>
          {parallel.map((one) =>
            one.possible ? (
              <tr key={one.degree}>
                <td class="num">{one.degree}</td>
                <td class="num">
                  {bytes(one.weights_bytes)} {!one.fits && <Badge tone="bad">too large</Badge>}
                </td>
                <td class="num">{count(one.concurrent_requests)}</td>
                <td class="num">{seconds(one.prefill_s)}</td>
                <td class="num">{seconds(one.decode_s)}</td>
                <td class="num">{rate(one.tokens_per_s)}</td>
                <td class="num">{bytes(one.allreduce_bytes_per_token)}</td>
              </tr>
            ) : (
              <tr key={one.degree}>
                <td class="num">{one.degree}</td>
                <td colSpan={6} class="muted">
                  {one.problem}
                </td>
              </tr>
            ),
          )}
        </tbody>
      </Table>
    </Card>
  );
}

function Speculation({ plan }: { plan: NonNullable<Plan["speculation"]> }) {
  const rows = [...new Set(plan.grid.map((cell) => cell.acceptance))];
  const columns = [...new Set(plan.grid.map((cell) => cell.drafts))];
  const cell = (acceptance: number, drafts: number): number | null =>
    plan.grid.find((one) => one.acceptance === acceptance && one.drafts === drafts)?.speedup ?? null;
  const heat = (speedup: number | null): number => (speedup === null || speedup < 1 ? 0 : Math.min(5, 1 + Math.floor((speedup - 1) * 2.5)));
  return (
    <Card title="Speculative decoding" aside={<Computed />} note="Expected tokens per verification with acceptance a and k drafts: (1 − aᵏ⁺¹) / (1 − a).">
      <dl class="stats">
        <Stat name="Tokens per verification" value={plan.tokens_per_verification.toFixed(2)} detail={`a = ${plan.acceptance}, k = ${plan.drafts}`} />
        <Stat name="Speed-up" value={plan.speedup === null ? "–" : `${plan.speedup.toFixed(2)}×`} />
        <Stat name="Best" value={plan.best_speedup === null ? "–" : `${plan.best_speedup.toFixed(2)}×`} detail={plan.best_drafts === null ? "" : `k = ${plan.best_drafts}`} />
      </dl>
      <Table label="Speed-up by acceptance and drafts" class="heat">
        <thead>
          <tr>
            <th>Acceptance</th>
            {columns.map((drafts) => (
              <th key={drafts} class="num">
                k = {drafts}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((acceptance) => (
            <tr key={acceptance}>
              <td>{percent(acceptance, 0)}</td>
              {columns.map((drafts) => {
                const speedup = cell(acceptance, drafts);
                return (
                  <td key={drafts} class="num" data-heat={heat(speedup)}>
                    {speedup === null ? "–" : `${speedup.toFixed(2)}×`}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </Table>
    </Card>
  );
}
