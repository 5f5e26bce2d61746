/** Planner inputs: model, hardware, load. */
import { useId, useState } from "preact/hooks";
import { short } from "../../lib/format";
import { Button, Card, Field } from "../../parts/basics";
import * as state from "./state";

export interface Entry {
  name: string;
  label: string;
  hint?: string;
  step?: number;
  min?: number;
  max?: number;
  none?: string; // placeholder where there is no default
}

const LOAD: Entry[] = [
  { name: "prompt_tokens", label: "Prompt tokens", min: 1 },
  { name: "output_tokens", label: "Output tokens", min: 1 },
  { name: "cached_share", label: "Prefix cache hit rate", min: 0, max: 1, step: 0.05 },
  { name: "rate", label: "Requests per second", min: 0, step: 0.1, none: "not set" },
  { name: "hour_price", label: "Device price per hour", min: 0, step: 0.1, none: "not set" },
  { name: "input_price", label: "API price, 1M input", min: 0, step: 0.05, none: "not set" },
  { name: "output_price", label: "API price, 1M output", min: 0, step: 0.05, none: "not set" },
  { name: "min_tokens_per_s", label: "Min tok/s per request", min: 0, step: 1, none: "no limit" },
];
const MACHINE: Entry[] = [
  { name: "tensor_parallel", label: "Tensor-parallel degree", min: 1 },
  { name: "memory_fraction", label: "Memory fraction", min: 0.05, max: 1, step: 0.05 },
  { name: "max_sequences", label: "Max sequences", min: 1 },
  { name: "step_tokens", label: "Max tokens per step", min: 1 },
  { name: "compute_efficiency", label: "Compute efficiency", min: 0.01, max: 1, step: 0.05, hint: "Expected share of the ceiling." },
  { name: "bandwidth_efficiency", label: "Bandwidth efficiency", min: 0.01, max: 1, step: 0.05 },
  { name: "measured_tokens_per_s", label: "Measured tok/s, one request", min: 0, step: 1, none: "not set", hint: "Takes the place of the bandwidth efficiency." },
  { name: "measured_prefill_tokens_per_s", label: "Measured prefill tok/s", min: 0, step: 1, none: "not set", hint: "Takes the place of the compute efficiency." },
  { name: "utilisation", label: "Max replica utilization", min: 0.05, max: 1, step: 0.05 },
  { name: "wait_p95_s", label: "Queue wait p95 (s)", min: 0.01, step: 0.1 },
];
const SPECULATION: Entry[] = [
  { name: "acceptance", label: "Acceptance rate", min: 0, max: 1, step: 0.05 },
  { name: "drafts", label: "Draft tokens", min: 1 },
  { name: "draft_cost", label: "Draft step cost", min: 0, step: 0.01, hint: "Relative to a step of the target model." },
];
const OWN_MODEL: Entry[] = ["layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "context"].map((name) => ({
  name,
  label: name.replaceAll("_", " "),
  min: 1,
}));
const OWN_HARDWARE: Entry[] = [
  { name: "memory_gb", label: "Memory (GB)", min: 0.1, step: 1 },
  { name: "bandwidth_tb_s", label: "Bandwidth (TB/s)", min: 0.001, step: 0.01 },
  { name: "tflops", label: "TFLOP/s", min: 0.01, step: 1 },
  { name: "link_gb_s", label: "Link (GB/s)", min: 0, step: 1 },
];

export function Form() {
  const { value: known } = state.presets;
  const model = known?.models.find((one) => one.name === state.model.value);
  const set = Object.values({ ...state.numbers.value, ...state.choices.value }).some((value) => value !== null);
  const kind = state.plan.value?.hardware.kind ?? "cpu";
  const formats = (field: "weights" | "kv", names: string[]) =>
    names.map((name) => [name, known?.not_run[kind][field].includes(name) ? `${name} (not in Penstock yet)` : name] as const);
  return (
    <Card title="Inputs" class="planner-form" aside={set && <Button onClick={state.reset}>Defaults</Button>}>
      <div class="params">
        <Select
          label="Model"
          value={state.model.value}
          options={[...(known?.models ?? []).map((one) => [one.name, `${one.name} (${short(one.parameters)})`] as const), [state.CUSTOM, "Custom…"]]}
          onChange={(name) => (state.model.value = name)}
        />
        {state.model.value === state.CUSTOM ? (
          <Entries entries={OWN_MODEL} values={state.ownModel.value} onChange={(name, value) => value !== null && (state.ownModel.value = { ...state.ownModel.value, [name]: value })} />
        ) : (
          model && (
            <p class="small muted">
              {model.layers} layers, {model.heads} heads, {model.kv_heads} KV heads of {model.head_dim}, context {short(model.context)}
            </p>
          )
        )}
        <Select
          label="Hardware"
          value={state.hardware.value}
          options={[
            ...(known?.hardware.some((one) => one.name === "this") ? [] : [["this", "This machine (measured)"] as const]),
            ...(known?.hardware ?? []).map((one) => [one.name, one.label] as const),
            [state.CUSTOM, "Custom…"],
          ]}
          onChange={(name) => (state.hardware.value = name)}
        />
        {state.hardware.value === state.CUSTOM && (
          <Entries entries={OWN_HARDWARE} values={state.ownHardware.value} onChange={(name, value) => value !== null && (state.ownHardware.value = { ...state.ownHardware.value, [name]: value })} />
        )}
        <div class="pair">
          <Select label="Weights" value={String(state.asked("weights") ?? "")} options={formats("weights", (known?.formats ?? []).map(({ name }) => name))} onChange={(value) => state.setChoice("weights", value)} />
          <Select label="KV cache" value={String(state.asked("kv") ?? "")} options={formats("kv", known?.kv_formats ?? [])} onChange={(value) => state.setChoice("kv", value)} />
        </div>
      </div>
      <Part title="Load" entries={LOAD} open />
      <Part title="Machine and engine" entries={MACHINE} />
      <Part title="Speculative decoding" entries={SPECULATION} />
    </Card>
  );
}

function Part({ title, entries, open = false }: { title: string; entries: Entry[]; open?: boolean }) {
  const values = Object.fromEntries(entries.map(({ name }) => [name, state.asked(name) as number | null]));
  return (
    <details open={open}>
      <summary>{title}</summary>
      <Entries entries={entries} values={values} onChange={state.setNumber} />
    </details>
  );
}

function Entries({
  entries,
  values,
  onChange,
}: {
  entries: Entry[];
  values: Record<string, number | null>;
  onChange: (name: string, value: number | null) => void;
}) {
  return (
    <div class="entries">
      {entries.map((entry) => (
        <NumberEntry key={entry.name} entry={entry} value={values[entry.name] ?? null} onChange={(value) => onChange(entry.name, value)} />
      ))}
    </div>
  );
}

/** A number; emptied, it goes back to its default when it loses the focus. */
export function NumberEntry({ entry, value, onChange }: { entry: Entry; value: number | null; onChange: (value: number | null) => void }) {
  const id = useId();
  const [typed, setTyped] = useState<string | null>(null);
  const wrong = state.problem.value?.param === entry.name;
  return (
    <div class="entry" data-wrong={wrong}>
      <label for={id} title={entry.hint}>
        {entry.label}
      </label>
      <input
        id={id}
        type="number"
        min={entry.min}
        max={entry.max}
        step={entry.step ?? 1}
        placeholder={entry.none ?? ""}
        aria-invalid={wrong}
        value={typed ?? (value === null ? "" : Number(value.toPrecision(6)))}
        onInput={({ currentTarget: field }) => {
          setTyped(field.value);
          onChange(field.value === "" || !Number.isFinite(field.valueAsNumber) ? null : field.valueAsNumber);
        }}
        onBlur={() => setTyped(null)}
      />
    </div>
  );
}

export function Select(props: { label: string; value: string; options: readonly (readonly [string, string])[]; onChange: (value: string) => void }) {
  return (
    <Field label={props.label}>
      {(id) => (
        <select id={id} value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
          {props.options.map(([value, text]) => (
            <option key={value} value={value}>
              {text}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}
