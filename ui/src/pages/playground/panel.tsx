/** The parameter panel, of the edited lane. */
import { Button, Field, Segmented } from "../../parts/basics";
import { Check } from "../../parts/form";
import { comparing, edited, lanes, set, setNumber } from "./lanes";
import { recommended } from "./models";
import { FormatPanel } from "./format-panel";
import { GROUPS, type NumberParam, OTHER, type Settings } from "./params";
import { activePreset, conflicts, PRESETS, withPreset } from "./presets";
import { speculates } from "./request";
import { SystemPrompt } from "./system-prompts";
import { ToolsPanel } from "./tools-panel";

export function Panel() {
  const lane = edited.value;
  const now = lane.settings.value;
  const own = recommended(lane.model.value);
  return (
    <div class="panel-body">
      {comparing.value && (
        <Segmented
          label="Parameters of"
          value={lane.name}
          options={lanes.value.map(({ name }) => [name, `Parameters ${name}`] as const)}
          onChange={(name) => (edited.value = lanes.value.find((other) => other.name === name)!)}
        />
      )}
      <SystemPrompt />
      <Presets now={now} />
      <Warnings found={conflicts(now.numbers, own)} />
      {GROUPS.map(({ title, open, params }) => (
        <details key={title} open={open}>
          <summary>{title}</summary>
          <div class="params">
            {params.map((param) => (
              <Parameter key={param.name} param={param} value={now.numbers[param.name]} own={own[param.name]} />
            ))}
            {title === "Length" && <Ends now={now} />}
          </div>
        </details>
      ))}
      <FormatPanel />
      <ToolsPanel />
      <details>
        <summary>More</summary>
        <div class="params">
          {OTHER.map((param) => (
            <Parameter key={param.name} param={param} value={now.numbers[param.name]} own={own[param.name]} />
          ))}
          <Field label="If the conversation is too long" hint="With attached documents, the oldest turns are dropped.">
            {(id) => (
              <select id={id} value={now.history} onChange={(event) => set({ history: event.currentTarget.value as Settings["history"] })}>
                <option value="">it is an error</option>
                <option value="drop_oldest">drop the oldest turns</option>
                <option value="keep_first">keep the first turn</option>
                <option value="summarize">summarize</option>
              </select>
            )}
          </Field>
          <Field label="Context budget" hint="Tokens of prompt and answer together; documents and history are fitted to it.">
            {(id) => (
              <input
                id={id}
                type="number"
                min={1}
                placeholder="the model’s context"
                value={now.budget ?? ""}
                onInput={(event) => set({ budget: event.currentTarget.valueAsNumber || null })}
              />
            )}
          </Field>
          <Lines label="Logit bias" hint="token id: bias, one per line" value={now.bias} onChange={(bias) => set({ bias })} />
          <Field label="Cache salt" hint="Prefixes are shared only between requests with the same salt.">
            {(id) => <input id={id} value={now.salt} onInput={(event) => set({ salt: event.currentTarget.value })} />}
          </Field>
        </div>
      </details>
      <Check label="Token probabilities (logprobs)" checked={now.probabilities} onChange={(probabilities) => set({ probabilities })} />
      {speculates() && <Check label="Speculation (drafts)" checked={now.drafts} onChange={(drafts) => set({ drafts })} />}
      <p class="small muted">
        Unset parameters are the model’s own: {Object.entries(own).map(([name, value]) => `${name} ${value}`).join(", ")}. The server applies its sampling; max_tokens is sent.
      </p>
    </div>
  );
}

function Presets({ now }: { now: Settings }) {
  const active = activePreset(now.numbers);
  return (
    <div class="field">
      <span class="label">Preset</span>
      <div class="presets" role="group" aria-label="Preset">
        {Object.entries(PRESETS).map(([name, { label, why }]) => (
          <button key={name} type="button" title={why} aria-pressed={name === active} onClick={() => set({ numbers: withPreset(now.numbers, name) })}>
            {label}
          </button>
        ))}
      </div>
      {active && <small>{PRESETS[active]!.why}</small>}
    </div>
  );
}

function Warnings({ found }: { found: string[] }) {
  if (!found.length) return null;
  return (
    <div class="warnings" role="status" aria-label="Warnings about the settings">
      {found.map((text) => (
        <p key={text}>{text}</p>
      ))}
    </div>
  );
}

function Ends({ now }: { now: Settings }) {
  return (
    <>
      <Lines label="Stop strings" hint="one per line, up to 4; \n is a newline" value={now.stop} onChange={(stop) => set({ stop })} />
      <Field label="Stop token ids" hint="comma-separated">
        {(id) => (
          <input id={id} value={now.stopTokens} inputMode="numeric" onInput={(event) => set({ stopTokens: event.currentTarget.value })} />
        )}
      </Field>
      <Check label="Ignore EOS (ignore_eos)" checked={now.ignoreEos} onChange={(ignoreEos) => set({ ignoreEos })} />
    </>
  );
}

function Lines(props: { label: string; hint: string; value: string; onChange: (value: string) => void }) {
  return (
    <Field label={props.label} hint={props.hint}>
      {(id) => (
        <textarea id={id} rows={2} class="mono" value={props.value} onInput={(event) => props.onChange(event.currentTarget.value)} />
      )}
    </Field>
  );
}

/** `own`: what the model recommends. */
function Parameter({ param, value, own }: { param: NumberParam; value: number | undefined; own: number | undefined }) {
  const { name, label, hint, min, max, step, neutral } = param;
  const id = `param-${name}`;
  const take = (text: string): void => {
    if (text === "") setNumber(name, undefined);
    else if (Number.isFinite(Number(text))) setNumber(name, Math.min(max, Math.max(min, Number(text))));
  };
  return (
    <div class="parameter" data-set={value !== undefined}>
      <div class="head">
        <label for={id}>{label}</label>
        {value !== undefined && (
          <Button icon="close" kind="quiet" label={`Reset ${label}`} onClick={() => setNumber(name, undefined)} />
        )}
        <input
          id={id}
          type="number"
          min={min}
          max={max}
          step={param.slider ? step : 1}
          aria-describedby={`${id}-hint`}
          placeholder={String(own ?? (neutral === undefined ? "default" : name === "temperature" ? neutral : "off"))}
          value={value ?? ""}
          onChange={(event) => take(event.currentTarget.value)}
        />
      </div>
      {param.slider && (
        <input
          type="range"
          aria-label={label}
          aria-describedby={`${id}-hint`}
          min={min}
          max={max}
          step={step}
          value={value ?? own ?? neutral}
          onInput={(event) => take(event.currentTarget.value)}
        />
      )}
      <small class="hint" id={`${id}-hint`}>
        {hint}
      </small>
    </div>
  );
}
