/** Planner inputs: model, hardware, load. */
import { useId } from "preact/hooks";
import { short } from "../../lib/format";
import { Card, Field } from "../../parts/basics";
import * as state from "./state";

interface Entry {
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
  { name: "min_tokens_per_s", label: "Min tok/s per request", min: 0, step: 1, none: "no limit" },
];
const MACHINE: Entry[] = [
  { name: "tensor_parallel", label: "Tensor-parallel degree", min: 1 },
  { name: "memory_fraction", label: "Memory fraction", min: 0.05, max: 1, step: 0.05 },
  { name: "max_sequences", label: "Max sequences", min: 1 },
  { name: "step_tokens", label: "Max tokens per step", min: 1 },
  { name: "compute_efficiency", label: "Compute efficiency", min: 0.01, max: 1, step: 0.05, hint: "Expected share of the ceiling." },
  { name: "bandwidth_efficiency", label: "Bandwidth efficiency", min: 0.01, max: 1, step: 0.05 },
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
  return (
    <Card title="Inputs" class="planner-form">
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
          <Select label="Weights" value={choice("weights")} options={[usual, ...(known?.formats ?? []).map(({ name }) => [name, name] as const)]} onChange={(value) => choose("weights", value)} />
          <Select label="KV cache" value={choice("kv")} options={[usual, ...(known?.kv_formats ?? []).map((name) => [name, name] as const)]} onChange={(value) => choose("kv", value)} />
        </div>
      </div>
      <Part title="Load" entries={LOAD} open />
      <Part title="Machine and engine" entries={MACHINE} />
      <Part title="Speculative decoding" entries={SPECULATION} />
    </Card>
  );
}

const usual = ["", "Default"] as const;
const choice = (name: string): string => state.choices.value[name] ?? "";
const choose = (name: string, value: string): void => {
  state.choices.value = { ...state.choices.value, [name]: value };
};

function Part({ title, entries, open = false }: { title: string; entries: Entry[]; open?: boolean }) {
  const defaults = state.presets.value?.defaults ?? {};
  return (
    <details open={open}>
      <summary>{title}</summary>
      <Entries entries={entries} values={state.numbers.value} defaults={defaults} onChange={state.setNumber} />
    </details>
  );
}

function Entries({
  entries,
  values,
  defaults = {},
  onChange,
}: {
  entries: Entry[];
  values: Record<string, number | null>;
  defaults?: Record<string, number | string | null>;
  onChange: (name: string, value: number | null) => void;
}) {
  return (
    <div class="entries">
      {entries.map((entry) => (
        <NumberEntry key={entry.name} entry={entry} value={values[entry.name] ?? null} fallback={defaults[entry.name]} onChange={(value) => onChange(entry.name, value)} />
      ))}
    </div>
  );
}

function NumberEntry({ entry, value, fallback, onChange }: { entry: Entry; value: number | null; fallback?: number | string | null; onChange: (value: number | null) => void }) {
  const id = useId();
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
        placeholder={fallback != null ? String(fallback) : (entry.none ?? "")}
        aria-invalid={wrong}
        value={value ?? ""}
        onInput={({ currentTarget: field }) => onChange(field.value === "" || !Number.isFinite(field.valueAsNumber) ? null : field.valueAsNumber)}
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
