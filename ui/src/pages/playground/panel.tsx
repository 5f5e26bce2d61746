/** The parameter panel. */
import { Button, Field, Segmented } from "../../parts/basics";
import { facts } from "../../lib/live";
import { GROUPS, type NumberParam, OTHER, PRESETS, activePreset, set, setNumber, settings, applyPreset } from "./params";

export function Panel() {
  const now = settings.value;
  const presets = Object.entries(PRESETS).map(([name, { label }]) => [name, label] as const);
  return (
    <div class="panel-body">
      <Field label="System prompt">
        {(id) => (
          <textarea
            id={id}
            rows={3}
            aria-describedby={`${id}-hint`}
          placeholder="Instructions for the model"
            value={now.system}
            onInput={(event) => set({ system: event.currentTarget.value })}
          />
        )}
      </Field>
      <div class="field">
        <span class="label">Preset</span>
        <Segmented label="Preset" value={activePreset(now)} options={presets} onChange={applyPreset} />
      </div>
      {GROUPS.map(({ title, open, params }) => (
        <details key={title} open={open}>
          <summary>{title}</summary>
          <div class="params">
            {params.map((param) => (
              <Parameter key={param.name} param={param} value={now.numbers[param.name]} />
            ))}
            {title === "Length" && <Ends />}
          </div>
        </details>
      ))}
      <details>
        <summary>More</summary>
        <div class="params">
          {OTHER.map((param) => (
            <Parameter key={param.name} param={param} value={now.numbers[param.name]} />
          ))}
          <Lines label="Logit bias" hint="token id: bias, one per line" value={now.bias} onChange={(bias) => set({ bias })} />
          <Field label="Cache salt" hint="Prefixes are shared only between requests with the same salt.">
            {(id) => <input id={id} value={now.salt} onInput={(event) => set({ salt: event.currentTarget.value })} />}
          </Field>
        </div>
      </details>
      <label class="check">
        <input
          type="checkbox"
          checked={now.probabilities}
          onChange={(event) => set({ probabilities: event.currentTarget.checked })}
        />
        Token probabilities (logprobs)
      </label>
      <p class="small muted">Unset parameters use the server’s defaults: the model’s recommended sampling.</p>
    </div>
  );
}

function Ends() {
  const now = settings.value;
  return (
    <>
      <Lines label="Stop strings" hint="one per line, up to 4; \n is a newline" value={now.stop} onChange={(stop) => set({ stop })} />
      <Field label="Stop token ids" hint="comma-separated">
        {(id) => (
          <input id={id} value={now.stopTokens} inputMode="numeric" onInput={(event) => set({ stopTokens: event.currentTarget.value })} />
        )}
      </Field>
      <label class="check">
        <input type="checkbox" checked={now.ignoreEos} onChange={(event) => set({ ignoreEos: event.currentTarget.checked })} />
        Ignore EOS (ignore_eos)
      </label>
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

function Parameter({ param, value }: { param: NumberParam; value: number | undefined }) {
  const { name, label, hint, min, max, step, neutral } = param;
  const id = `param-${name}`;
  const makers = facts.value?.sampling[name];
  const take = (text: string): void => {
    if (text === "") setNumber(name, undefined);
    else if (Number.isFinite(Number(text))) setNumber(name, Math.min(max, Math.max(min, Number(text))));
  };
  return (
    <div class="parameter" data-set={value !== undefined}>
      <div class="head">
        <label for={id}>
          {label}
        </label>
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
          placeholder={String(makers ?? (neutral === undefined ? "default" : name === "temperature" ? neutral : "off"))}
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
          value={value ?? makers ?? neutral}
          onInput={(event) => take(event.currentTarget.value)}
        />
      )}
      <small class="hint" id={`${id}-hint`}>
        {hint}
      </small>
    </div>
  );
}
