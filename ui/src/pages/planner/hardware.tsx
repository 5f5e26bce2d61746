/** Hardware side by side, and one model over several devices. */
import { useSignal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { bytes, count, percent, seconds, short } from "../../lib/format";
import { fetchJson, errorMessage } from "../../lib/http";
import { Badge, Card, Computed, Stat, Table } from "../../parts/basics";
import type { Plan } from "./api";
import { money, rate } from "./figures";
import * as state from "./state";
import { setNumber } from "./state";

interface Option {
  hardware: string;
  devices: number;
  price: number | null;
}

const SETTLE_MS = 250;
const FIRST: Option[] = [
  { hardware: "h100-sxm", devices: 1, price: null },
  { hardware: "l40s", devices: 1, price: null },
  { hardware: "rtx-4090", devices: 1, price: null },
];
const LINES: [string, (plan: Plan) => string][] = [
  ["Memory", ({ hardware, devices }) => `${devices > 1 ? `${devices} × ` : ""}${bytes(hardware.memory_bytes)}`],
  ["Bandwidth", ({ hardware, devices }) => `${bytes(hardware.bandwidth_bytes_s * devices)}/s`],
  ["FLOP/s, 16 bit", ({ hardware }) => short(hardware.flops)],
  ["FLOP/s, FP8", ({ hardware }) => (hardware.fp8_flops === null ? "none" : short(hardware.fp8_flops))],
  ["Concurrent requests", ({ kv }) => count(kv.concurrent_requests)],
  ["Prefill (TTFT)", ({ prefill }) => seconds(prefill?.expected_s)],
  ["One request", ({ decode }) => rate(decode.curve[0]?.tokens_per_s)],
  ["Ceiling, one request", ({ decode }) => rate(decode.curve[0]?.ceiling_tokens_per_s)],
  ["All requests", ({ profiles }) => rate(profiles.at(-1)?.tokens_per_s)],
  ["Cost, 1M tokens", ({ profiles }) => money(profiles.at(-1)?.cost_per_million)],
];

/** Three devices with the same model and load; each is a plan of its own. */
export function SideBySide() {
  const options = useSignal(FIRST);
  const found = useSignal<(Plan | string | null)[]>(FIRST.map(() => null));
  const asked = JSON.stringify([state.question(), options.value]);
  useEffect(() => {
    const abort = new AbortController();
    const timer = setTimeout(() => {
      const { tensor_parallel: _, hour_price: __, ...rest } = state.question();
      options.value.forEach((option, place) => {
        const body = { ...rest, hardware: option.hardware, tensor_parallel: option.devices, hour_price: option.price };
        const put = (answer: Plan | string): void => {
          if (!abort.signal.aborted) found.value = found.value.map((one, at) => (at === place ? answer : one));
        };
        fetchJson<Plan>("/plan", { body, signal: abort.signal }).then(put, (error: unknown) => put(errorMessage(error)));
      });
    }, SETTLE_MS);
    return () => (clearTimeout(timer), abort.abort());
  }, [asked]);
  const change = (place: number, by: Partial<Option>): void => {
    options.value = options.value.map((one, at) => (at === place ? { ...one, ...by } : one));
  };
  const number = (place: number, name: "devices" | "price", label: string, value: number | null) => (
    <input
      type="number"
      min={name === "devices" ? 1 : 0}
      step={name === "devices" ? 1 : 0.1}
      aria-label={`${label} of option ${place + 1}`}
      placeholder="not set"
      value={value ?? ""}
      onInput={({ currentTarget: { valueAsNumber: typed } }) => change(place, { [name]: Number.isFinite(typed) && typed >= 0 ? typed : name === "devices" ? 1 : null })}
    />
  );
  return (
    <Card title="Side by side" aside={<Computed />} note="The model, formats and load of the form on three devices.">
      <Table label="Hardware side by side" class="options">
        <thead>
          <tr>
            <th>Hardware</th>
            {options.value.map(({ hardware }, place) => (
              <th key={place}>
                <select aria-label={`Hardware of option ${place + 1}`} value={hardware} onChange={(event) => change(place, { hardware: event.currentTarget.value })}>
                  {(state.presets.value?.hardware ?? []).map((one) => (
                    <option key={one.name} value={one.name}>
                      {one.label.replace(/^(NVIDIA|AMD|Intel) /, "")}
                    </option>
                  ))}
                </select>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <tr>
            <td>Devices</td>
            {options.value.map(({ devices }, place) => (
              <td key={place}>{number(place, "devices", "Devices", devices)}</td>
            ))}
          </tr>
          <tr>
            <td>Price per device-hour</td>
            {options.value.map(({ price }, place) => (
              <td key={place}>{number(place, "price", "Price per hour", price)}</td>
            ))}
          </tr>
          <tr data-option="fits">
            <td>Fits</td>
            {found.value.map((one, place) => (
              <td key={place}>
                {typeof one === "string" ? (
                  <span class="option-problem">{one}</span>
                ) : one ? (
                  <Badge tone={one.memory.fits ? "good" : "bad"}>{one.memory.fits ? "fits" : `${bytes(one.memory.missing_bytes)} missing`}</Badge>
                ) : (
                  "…"
                )}
              </td>
            ))}
          </tr>
          {LINES.map(([name, value]) => (
            <tr key={name}>
              <td>{name}</td>
              {found.value.map((one, place) => (
                <td key={place}>{one && typeof one !== "string" ? value(one) : "–"}</td>
              ))}
            </tr>
          ))}
          <tr>
            <td>In Penstock</td>
            {found.value.map((one, place) => (
              <td key={place}>
                {one && typeof one !== "string" && (
                  <Badge tone={one.not_run.length ? "warn" : "good"} title={one.not_run.join(" ")}>
                    {one.not_run.length ? "not yet" : "runs"}
                  </Badge>
                )}
              </td>
            ))}
          </tr>
        </tbody>
      </Table>
    </Card>
  );
}

export function Parallel({ plan: { parallel, devices } }: { plan: Plan }) {
  const place = Math.max(0, parallel.findIndex((one) => one.degree === devices));
  const [moved, setMoved] = useState<number | null>(null);
  const one = parallel[moved ?? place]!;
  const move = (next: number): void => {
    const chosen = parallel[next]!;
    setMoved(chosen.possible ? null : next);
    if (chosen.possible) setNumber("tensor_parallel", chosen.degree);
  };
  return (
    <Card title="Tensor parallelism" aside={<Computed />} note="Weights and KV heads are sharded over devices, which all-reduce activations in every layer.">
      <div class="parameter" data-set="true">
        <div class="head">
          <label for="gpu-count">Devices</label>
          <output for="gpu-count">{one.degree}</output>
        </div>
        <input
          id="gpu-count"
          type="range"
          min={0}
          max={parallel.length - 1}
          step={1}
          value={moved ?? place}
          aria-valuetext={`${one.degree} devices`}
          onInput={(event) => move(Number(event.currentTarget.value))}
        />
      </div>
      {one.possible ? (
        <dl class="stats">
          <Stat name="Total bandwidth" value={<span data-plan="bandwidth">{`${bytes(one.bandwidth_bytes_s)}/s`}</span>} detail={one.degree === 1 ? "1 device" : `${one.degree} devices`} />
          <Stat name="Ceiling, one request" value={rate(one.ceiling_tokens_per_s)} detail={`${percent(one.allreduce_share, 0)} all-reduce`} />
          <Stat name="Expected, all requests" value={rate(one.tokens_per_s)} detail={`${count(one.concurrent_requests)} concurrent`} />
          <Stat name="Weights per device" value={bytes(one.weights_bytes)} tone={one.fits ? "good" : "bad"} detail={one.fits ? "fits" : "too large"} />
        </dl>
      ) : (
        <p class="problem">{one.problem}</p>
      )}
      <Table label="Tensor parallelism">
        <thead>
          <tr>
            <th class="num">Devices</th>
            <th class="num">Weights per device</th>
            <th class="num">Concurrent requests</th>
            <th class="num">Prefill</th>
            <th class="num">Decode step</th>
            <th class="num">Throughput</th>
            <th class="num">Total bandwidth</th>
            <th class="num">Ceiling, one request</th>
            <th class="num">All-reduce</th>
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
                <td class="num">{bytes(one.bandwidth_bytes_s)}/s</td>
                <td class="num">{rate(one.ceiling_tokens_per_s)}</td>
                <td class="num">{percent(one.allreduce_share, 0)}</td>
              </tr>
            ) : (
              <tr key={one.degree}>
                <td class="num">{one.degree}</td>
                <td colSpan={8} class="muted">
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
