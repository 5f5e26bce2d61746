/** Forms of keys and tenants: creates one, or changes the fields that differ. */
import { useState } from "preact/hooks";
import { problemOf } from "../../lib/admin";
import { Button, Field, Problem } from "../../parts/basics";
import { Dialog } from "../../parts/dialog";
import { Checks, TextField } from "../../parts/form";
import { type Key, SCOPES, TIERS, type Tenant } from "./api";

type Values = Record<string, string>;

interface NumberEntry {
  name: string;
  label: string;
  hint?: string;
}

const LIMITS: NumberEntry[] = [
  { name: "requests_per_minute", label: "Requests per minute" },
  { name: "tokens_per_minute", label: "Tokens per minute" },
  { name: "concurrent_requests", label: "Concurrent requests" },
  { name: "usd_per_day", label: "USD per day" },
  { name: "usd_per_month", label: "USD per month" },
];
const OUTPUT: NumberEntry[] = [
  { name: "default_max_tokens", label: "Default max_tokens", hint: "Of requests that name none." },
  { name: "max_tokens", label: "Largest max_tokens" },
];

const text = (value: unknown): string => (value === null || value === undefined ? "" : String(value));

/** null: no limit. */
const number = (value: string | undefined): number | null => (value?.trim() ? Number(value) : null);

/** "2026-01-31T12:00" in local time, as <input type="datetime-local"> has it. */
function localTime(unixSeconds: number | null): string {
  if (unixSeconds === null) return "";
  const date = new Date(unixSeconds * 1000);
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

/** Fields that differ from `before`. */
function changes(now: Record<string, unknown>, before: object | null): Record<string, unknown> {
  if (!before) return Object.fromEntries(Object.entries(now).filter(([, value]) => value !== null));
  const known = before as Record<string, unknown>;
  return Object.fromEntries(Object.entries(now).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(known[name] ?? null)));
}

function NumberFields({ entries, values, set, wrong, placeholder }: { entries: NumberEntry[]; values: Values; set: (change: Values) => void; wrong: string | null; placeholder: string }) {
  return (
    <div class="fields">
      {entries.map((entry) => (
        <TextField
          key={entry.name}
          type="number"
          label={entry.label}
          hint={entry.hint}
          placeholder={placeholder}
          wrong={wrong === entry.name}
          value={values[entry.name] ?? ""}
          onInput={(value) => set({ [entry.name]: value })}
        />
      ))}
    </div>
  );
}

/** State and submission that both forms share. */
function useForm(initial: Values, send: (values: Values) => Promise<void>) {
  const [values, setValues] = useState(initial);
  const [problem, setProblem] = useState<ReturnType<typeof problemOf> | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = (event: Event): void => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setProblem(null);
    send(values).catch((error: unknown) => (setProblem(problemOf(error)), setBusy(false)));
  };
  return { values, set: (change: Values) => setValues((now) => ({ ...now, ...change })), problem, busy, submit };
}

export function KeyForm({
  before,
  tenants,
  models,
  tenant = "",
  save,
  onClose,
}: {
  before: Key | null;
  tenants: string[];
  models: string[];
  tenant?: string;
  save: (body: Record<string, unknown>) => Promise<void>;
  onClose: () => void;
}) {
  const [scopes, setScopes] = useState<string[]>(before?.scopes ?? ["inference"]);
  const [allowed, setAllowed] = useState<string[]>(before?.models ?? []);
  const known = [...new Set([...models, ...(before?.models ?? [])])];
  const numbers = [...LIMITS, ...OUTPUT];
  const initial: Values = {
    tenant: before?.tenant ?? tenant,
    name: before?.name ?? "",
    tier: before?.tier ?? "standard",
    expires: localTime(before?.expires_at ?? null),
    ...Object.fromEntries(numbers.map(({ name }) => [name, text(before?.[name as keyof Key])])),
  };
  const { values, set, problem, busy, submit } = useForm(initial, (now) => {
    const fields = {
      name: now.name ?? "",
      scopes,
      models: allowed.length ? allowed : null,
      tier: now.tier,
      expires_at: now.expires === initial.expires ? (before?.expires_at ?? null) : now.expires ? Math.floor(new Date(now.expires).getTime() / 1000) : null,
      ...Object.fromEntries(numbers.map(({ name }) => [name, number(now[name])])),
    };
    return save({ ...(before ? {} : { tenant: now.tenant?.trim() }), ...changes(fields, before) });
  });
  const complete = values.tenant?.trim() && scopes.length > 0;
  return (
    <Dialog title={before ? `Edit key ${before.id}` : "New key"} onClose={onClose} wide stay>
      <form onSubmit={submit}>
        <div class="fields">
          {!before && <TenantField value={values.tenant ?? ""} tenants={tenants} wrong={problem?.param === "tenant"} onInput={(value) => set({ tenant: value })} />}
          <TextField label="Name" hint="For people; any text." autofocus={initial.tenant !== ""} value={values.name ?? ""} wrong={problem?.param === "name"} onInput={(value) => set({ name: value })} />
          <Field label="Tier" hint="Who goes first when requests wait.">
            {(id) => (
              <select id={id} value={values.tier} onChange={(event) => set({ tier: event.currentTarget.value })}>
                {TIERS.map((name) => (
                  <option key={name}>{name}</option>
                ))}
              </select>
            )}
          </Field>
          <Field label="Expires" hint="Empty: never.">
            {(id) => <input id={id} type="datetime-local" value={values.expires} aria-invalid={problem?.param === "expires_at"} onInput={(event) => set({ expires: event.currentTarget.value })} />}
          </Field>
        </div>
        <Checks label="Scopes" names={SCOPES} chosen={scopes} onChange={setScopes} />
        {known.length > 0 && <Checks label="Models (none checked: all)" names={known} chosen={allowed} onChange={setAllowed} plain />}
        <NumberFields entries={LIMITS} values={values} set={set} wrong={problem?.param ?? null} placeholder="no limit" />
        <NumberFields entries={OUTPUT} values={values} set={set} wrong={problem?.param ?? null} placeholder="not set" />
        <End problem={problem?.message} busy={busy} disabled={!complete} action={before ? "Save" : "Create key"} onClose={onClose} />
      </form>
    </Dialog>
  );
}

function TenantField({ value, tenants, wrong, onInput }: { value: string; tenants: string[]; wrong: boolean; onInput: (value: string) => void }) {
  return (
    <Field label="Tenant" hint="One that exists, or a new name.">
      {(id) => (
        <>
          <input id={id} list={`${id}-known`} required autofocus={!value} spellcheck={false} autocomplete="off" aria-invalid={wrong} value={value} onInput={(event) => onInput(event.currentTarget.value)} />
          <datalist id={`${id}-known`}>
            {tenants.map((name) => (
              <option key={name} value={name} />
            ))}
          </datalist>
        </>
      )}
    </Field>
  );
}

export function TenantForm({ before, save, onClose }: { before: Tenant | null; save: (body: Record<string, unknown>) => Promise<void>; onClose: () => void }) {
  const initial: Values = {
    name: before?.name ?? "",
    weight: text(before?.weight ?? 1),
    ...Object.fromEntries(LIMITS.map(({ name }) => [name, text(before?.[name as keyof Tenant])])),
  };
  const { values, set, problem, busy, submit } = useForm(initial, (now) => {
    const fields = { weight: number(now.weight), ...Object.fromEntries(LIMITS.map(({ name }) => [name, number(now[name])])) };
    return save({ ...(before ? {} : { name: now.name?.trim() }), ...changes(fields, before) });
  });
  return (
    <Dialog title={before ? `Edit tenant ${before.name}` : "New tenant"} onClose={onClose} wide stay>
      <form onSubmit={submit}>
        <div class="fields">
          {!before && <TextField label="Name" required autofocus value={values.name ?? ""} wrong={["name", "tenant"].includes(problem?.param ?? "")} onInput={(name) => set({ name })} />}
          <TextField type="number" label="Weight" hint="Share of the engine while several tenants wait." value={values.weight ?? ""} wrong={problem?.param === "weight"} onInput={(weight) => set({ weight })} />
        </div>
        <p class="small muted">Limits of all keys of the tenant together.</p>
        <NumberFields entries={LIMITS} values={values} set={set} wrong={problem?.param ?? null} placeholder="no limit" />
        <End problem={problem?.message} busy={busy} disabled={!values.name?.trim()} action={before ? "Save" : "Create tenant"} onClose={onClose} />
      </form>
    </Dialog>
  );
}

function End({ problem, busy, disabled, action, onClose }: { problem: string | undefined; busy: boolean; disabled: boolean; action: string; onClose: () => void }) {
  return (
    <>
      {problem && <Problem message={problem} />}
      <div class="row end">
        <Button onClick={onClose}>Cancel</Button>
        <Button kind="primary" type="submit" disabled={busy || disabled}>
          {action}
        </Button>
      </div>
    </>
  );
}
