/** Context budget of a prompt, with the served model's tokenizer and chat template, and what context assembly makes of it. */
import { useSignal, type Signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { count } from "../../lib/format";
import { fetchJson, errorMessage } from "../../lib/http";
import { ofModel } from "../../lib/source";
import { Card, Field, Problem } from "../../parts/basics";
import { ContextParts } from "../../parts/context-parts";
import type { Budget } from "./api";
import { Select } from "./form";

const SETTLE_MS = 250;

/** Options of context assembly; null: a budget that is not set. */
interface Assembly {
  on: boolean;
  history: string;
  rank: string;
  total: number | null;
  documents: number | null;
}

const POLICIES = [
  ["", "The model’s default"],
  ["drop_oldest", "Drop the oldest turns"],
  ["keep_first", "Keep the first turn"],
  ["summarize", "Summarize (room only)"],
  ["keep_all", "Drop none"],
] as const;
const RANKINGS = [
  ["", "The model’s default"],
  ["bm25", "BM25"],
  ["given", "As given"],
] as const;

const PARTS: Record<string, [string, string]> = {
  system: ["System", "intake"],
  history: ["History", "prefill"],
  documents: ["Documents", "cached"],
  user: ["User", "decode"],
  template: ["Chat template", "output"],
  output: ["Reserved for output", "wait"],
};

export function TokenBudget() {
  const system = useSignal("You are a helpful assistant.");
  const history = useSignal("");
  const documents = useSignal("");
  const user = useSignal("Summarise the documents.");
  const reserved = useSignal<number | null>(256);
  const assembly = useSignal<Assembly>({ on: false, history: "", rank: "", total: null, documents: null });
  const found = useSignal<Budget | null>(null);
  const problem = useSignal("");
  useEffect(() => {
    const timer = setTimeout(() => {
      fetchJson<Budget>("/plan/budget", {
        body: {
          ...ofModel(),
          system: system.value || null,
          history: orNull(turns(history.value)),
          documents: orNull(documents.value.split(/\n---+\n/).filter((one) => one.trim())),
          user: user.value || null,
          reserved_output: reserved.value,
          assembly: assembly.value.on ? options(assembly.value) : null,
        },
      }).then(
        (answer) => ((found.value = answer), (problem.value = "")),
        (error: unknown) => ((found.value = null), (problem.value = errorMessage(error))), // its figures are of other input
      );
    }, SETTLE_MS);
    return () => clearTimeout(timer);
  }, [system.value, history.value, documents.value, user.value, reserved.value, assembly.value]);
  const now = found.value;
  const whole = now ? Math.max(now.context, now.used_tokens) : 1;
  const area = (label: string, value: { value: string }, rows: number, hint?: string) => (
    <Field label={label} hint={hint}>
      {(id) => <textarea id={id} rows={rows} dir="auto" value={value.value} onInput={(event) => (value.value = event.currentTarget.value)} />}
    </Field>
  );
  return (
    <Card title="Token budget" note="How the parts of a conversation share the context, as rendered by the chat template.">
      <div class="budget">
        {area("System", system, 2)}
        {area("User", user, 2)}
        {area("History", history, 3, "One turn per line; lines starting with > are the assistant’s.")}
        {area("Documents", documents, 3, "Separate documents with a line of ---.")}
        <Field label="Reserved for output">
          {(id) => (
            <input
              id={id}
              type="number"
              min={1}
              placeholder="256"
              value={reserved.value ?? ""}
              onInput={({ currentTarget: field }) => (reserved.value = field.valueAsNumber >= 1 ? Math.floor(field.valueAsNumber) : null)}
            />
          )}
        </Field>
      </div>
      <AssemblyOptions assembly={assembly} />
      {problem.value && <Problem message={problem.value} />}
      {now && (
        <>
          <div class="memory-bar" role="img" aria-label={`${count(now.used_tokens)} of ${count(now.context)} tokens`}>
            {now.parts.map((part) => (
              <i key={part.name} data-colour={PARTS[part.name]?.[1] ?? "output"} style={{ width: `${(100 * part.tokens) / whole}%` }} />
            ))}
          </div>
          <ul class="legend">
            {now.parts.map((part) => (
              <li key={part.name} data-part={part.name} data-tokens={part.tokens}>
                <i data-colour={PARTS[part.name]?.[1] ?? "output"} /> {PARTS[part.name]?.[0] ?? part.name} <b>{count(part.tokens)}</b>
              </li>
            ))}
          </ul>
          <p class={now.fits ? "" : "problem"}>
            {now.fits
              ? `${count(now.free_tokens)} of ${count(now.context)} tokens free; max_tokens can be up to ${count(now.longest_output)}.`
              : `${count(-now.free_tokens)} tokens over the context length of ${count(now.context)}.`}
          </p>
          {now.assembled && <ContextParts context={now.assembled} />}
        </>
      )}
    </Card>
  );
}

function AssemblyOptions({ assembly }: { assembly: Signal<Assembly> }) {
  const { value: now } = assembly;
  const set = (change: Partial<Assembly>) => (assembly.value = { ...now, ...change });
  const tokens = (label: string, name: "total" | "documents", none: string) => (
    <Field label={label}>
      {(id) => (
        <input
          id={id}
          type="number"
          min={1}
          placeholder={none}
          value={now[name] ?? ""}
          onInput={({ currentTarget: field }) => set({ [name]: field.valueAsNumber >= 1 ? Math.floor(field.valueAsNumber) : null })}
        />
      )}
    </Field>
  );
  return (
    <details open={now.on} onToggle={({ currentTarget }) => currentTarget.open !== now.on && set({ on: currentTarget.open })}>
      <summary>Context assembly</summary>
      {now.on && (
        <>
          <p class="note">What a request with these options as its context keeps, cuts and drops; what is left open is as the model’s defaults say. Rankings that ask a model are not planned.</p>
          <div class="budget">
            {tokens("Total budget", "total", "the context")}
            {tokens("Budget of documents", "documents", "what is left")}
            <Select label="History policy" value={now.history} options={POLICIES} onChange={(history) => set({ history })} />
            <Select label="Ranking" value={now.rank} options={RANKINGS} onChange={(rank) => set({ rank })} />
          </div>
        </>
      )}
    </details>
  );
}

/** As the server takes them. */
function options({ history, rank, total, documents }: Assembly) {
  return { history: history || null, rank: rank || null, keep_first: history === "keep_first" ? 1 : null, budget: { total, documents } };
}

const orNull = <T,>(list: T[]): T[] | null => (list.length ? list : null);

function turns(text: string): { role: string; content: string }[] {
  return text
    .split("\n")
    .filter((line) => line.trim())
    .map((line) => (line.startsWith(">") ? { role: "assistant", content: line.slice(1).trim() } : { role: "user", content: line }));
}
