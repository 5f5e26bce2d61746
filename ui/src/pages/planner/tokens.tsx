/** Token counter and context budget, with the served model's tokenizer and chat template. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { count, visible } from "../../lib/format";
import { fetchJson, errorMessage } from "../../lib/http";
import { ofModel } from "../../lib/source";
import { Card, Field, Problem } from "../../parts/basics";
import type { Budget } from "./api";

const SETTLE_MS = 250;
const SHOWN = 600;

export function TokenCounter() {
  const text = useSignal("Penstock counts tokens with the served model’s tokenizer.");
  const found = useSignal<{ count: number; token_strs: string[] } | null>(null);
  const problem = useSignal("");
  useEffect(() => {
    const timer = setTimeout(() => {
      fetchJson<{ count: number; token_strs: string[] }>("/tokenize", { body: { ...ofModel(), prompt: text.value, add_special_tokens: false, return_token_strs: true } }).then(
        (answer) => ((found.value = answer), (problem.value = "")),
        (error: unknown) => (problem.value = errorMessage(error)),
      );
    }, SETTLE_MS);
    return () => clearTimeout(timer);
  }, [text.value]);
  const now = found.value;
  return (
    <Card title="Token counter" aside={now && <b data-plan="count">{count(now.count)} tokens</b>}>
      <textarea rows={3} aria-label="Text to count" dir="auto" value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
      {problem.value && <Problem message={problem.value} />}
      {now && (
        <p class="counted mono" dir="auto">
          {now.token_strs.slice(0, SHOWN).map((token, place) => (
            <span key={place}>{visible(token)}</span>
          ))}
          {now.count > SHOWN && <em> and {count(now.count - SHOWN)} more</em>}
        </p>
      )}
    </Card>
  );
}

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
  const reserved = useSignal(256);
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
        },
      }).then(
        (answer) => ((found.value = answer), (problem.value = "")),
        (error: unknown) => (problem.value = errorMessage(error)),
      );
    }, SETTLE_MS);
    return () => clearTimeout(timer);
  }, [system.value, history.value, documents.value, user.value, reserved.value]);
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
              min={0}
              value={reserved.value}
              onInput={({ currentTarget: field }) => (reserved.value = Math.max(0, Math.floor(field.valueAsNumber || 0)))}
            />
          )}
        </Field>
      </div>
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
        </>
      )}
    </Card>
  );
}

const orNull = <T,>(list: T[]): T[] | null => (list.length ? list : null);

function turns(text: string): { role: string; content: string }[] {
  return text
    .split("\n")
    .filter((line) => line.trim())
    .map((line) => (line.startsWith(">") ? { role: "assistant", content: line.slice(1).trim() } : { role: "user", content: line }));
}
