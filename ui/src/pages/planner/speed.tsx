/** Speed: prefill and decode, profiles, this server's measurements, and the latency calculator. */
import { useSignal } from "@preact/signals";
import { count, percent, seconds, short, bytes } from "../../lib/format";
import { Badge, Button, Card, Computed, Stat, Table } from "../../parts/basics";
import type { Plan } from "./api";
import { money, rate } from "./figures";
import { NumberEntry } from "./form";
import { setNumber } from "./state";

export function Measured({ measured }: { measured: NonNullable<Plan["measured"]> }) {
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

export function Speed({ plan: { prefill, decode } }: { plan: Plan }) {
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

export function Profiles({ plan: { profiles } }: { plan: Plan }) {
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

/** Latency and throughput from four figures; those of the balanced profile until others are typed. */
export function LatencyCalculator({ plan }: { plan: Plan }) {
  const typed = useSignal<Record<string, number | null>>({});
  const usual = plan.profiles.find((one) => one.name === "balanced");
  const value = (name: string, fallback: number): number => typed.value[name] ?? fallback;
  const ttft = value("ttft", (usual?.first_token_s ?? plan.prefill?.expected_s ?? 0) * 1000) / 1000;
  const tps = value("tps", usual?.request_tokens_per_s ?? plan.decode.curve[0]?.request_tokens_per_s ?? 1);
  const output = value("output", Number(plan.question.output_tokens));
  const concurrency = value("concurrency", usual?.batch ?? 1);
  const entry = (name: string, label: string, now: number) => (
    <NumberEntry entry={{ name, label, min: 0 }} value={now} onChange={(next) => (typed.value = { ...typed.value, [name]: next })} />
  );
  return (
    <Card title="Latency calculator" aside={<Computed />}>
      <p class="formula mono">
        total = TTFT + output / TPS; requests/s = concurrency × TPS / output
      </p>
      <div class="entries calculator">
        {entry("ttft", "TTFT (ms)", ttft * 1000)}
        {entry("tps", "TPS, one request (tok/s)", tps)}
        {entry("output", "Output tokens", output)}
        {entry("concurrency", "Concurrency", concurrency)}
      </div>
      <dl class="stats">
        <Stat name="Request latency" value={<span data-plan="latency">{seconds(ttft + output / tps)}</span>} detail={`${seconds(ttft)} + ${count(output)} / ${short(tps)}`} />
        <Stat name="Throughput" value={<span data-plan="throughput">{short((concurrency * tps) / output)} requests/s</span>} detail={`${count(concurrency)} × ${short(tps)} / ${count(output)}`} />
        <Stat name="Output" value={rate(concurrency * tps)} detail="of all requests" />
      </dl>
    </Card>
  );
}
