/** Memory of a device, and the KV calculator. */
import { useSignal } from "@preact/signals";
import { bytes, count, short } from "../../lib/format";
import { Badge, Card, Computed, Stat, Table } from "../../parts/basics";
import type { Plan } from "./api";
import { Slider } from "./slider";
import { asked, presets, setChoice, setNumber } from "./state";

export function Memory({ plan: { memory, kv, model } }: { plan: Plan }) {
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

/** The KV cache of so many sequences of so many tokens. Bytes per token and sequence come from the server. */
export function KvCalculator({ plan: { kv, memory, model, hardware, devices, question } }: { plan: Plan }) {
  const sequences = useSignal(8);
  const all = sequences.value * kv.request_bytes;
  const room = (memory.kv_bytes ?? 0) * devices;
  const output = Number(question.output_tokens);
  const marked = presets.value?.not_run[hardware.kind].kv ?? [];
  return (
    <Card title="KV calculator" aside={<Computed />}>
      <p class="formula mono">{kv.formula}</p>
      <div class="sliders-row">
        <Slider
          label="Tokens per sequence"
          min={output + 1}
          max={model.context}
          value={kv.request_tokens}
          log
          onInput={(tokens) => setNumber("prompt_tokens", Math.max(1, tokens - output))}
        />
        <Slider label="Sequences" min={1} max={512} value={sequences.value} log onInput={(value) => (sequences.value = value)} />
      </div>
      <dl class="stats">
        <Stat name="Per sequence" value={bytes(kv.request_bytes)} detail={`${count(kv.request_tokens)} tokens`} />
        <Stat name="All sequences" value={<span data-plan="kv_all">{bytes(all)}</span>} detail={`${count(sequences.value)} × ${bytes(kv.request_bytes)}`} />
        <Stat name="Room for KV" value={bytes(room)} tone={all <= room ? "good" : "bad"} detail={all <= room ? "they fit" : `${bytes(all - room)} missing`} />
      </dl>
      <Table label="KV cache by format">
        <thead>
          <tr>
            <th>Format</th>
            <th class="num">Per token</th>
            <th class="num">Per sequence</th>
            <th class="num">Concurrent requests</th>
          </tr>
        </thead>
        <tbody>
          {kv.formats.map((format) => (
            <tr key={format.name} data-kv={format.name} data-chosen={format.name === asked("kv")}>
              <td>
                <button type="button" class="link" aria-pressed={format.name === asked("kv")} onClick={() => setChoice("kv", format.name)}>
                  {format.name}
                </button>{" "}
                {marked.includes(format.name) && <Badge tone="warn">not in Penstock yet</Badge>}
              </td>
              <td class="num">{bytes(format.bytes_per_token)}</td>
              <td class="num">{bytes(format.request_bytes)}</td>
              <td class="num">{count(format.concurrent_requests)}</td>
            </tr>
          ))}
        </tbody>
      </Table>
    </Card>
  );
}
