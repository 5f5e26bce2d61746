/** State of the sampling lab: prompt, accepted tokens, sampling parameters, latest answer. */
import { effect, signal } from "@preact/signals";
import type { LabAnswer } from "../../lib/api";
import { fetchJson, errorMessage } from "../../lib/http";
import { ofModel } from "../../lib/source";

export interface LabParam {
  name: string;
  label: string;
  min: number;
  max: number;
  step: number;
  off: number; // the neutral value
}

export const PARAMS: LabParam[] = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, off: 1 },
  { name: "top_k", label: "Top-k", min: 0, max: 100, step: 1, off: 0 },
  { name: "top_p", label: "Top-p", min: 0.01, max: 1, step: 0.01, off: 1 },
  { name: "min_p", label: "Min-p", min: 0, max: 0.5, step: 0.01, off: 0 },
  { name: "typical_p", label: "Typical-p", min: 0.01, max: 1, step: 0.01, off: 1 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.5, max: 2, step: 0.01, off: 1 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.05, off: 0 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.05, off: 0 },
];

/** Kinds of response_format: label, input field and example. */
export const CONSTRAINTS: Record<string, { label: string; source?: string; example?: string }> = {
  text: { label: "None" },
  json_object: { label: "JSON object" },
  json_schema: { label: "JSON schema", source: "Schema", example: '{"type": "object", "properties": {"name": {"type": "string"}}}' },
  regex: { label: "Regular expression", source: "Regex", example: "[A-Z][a-z]+, [0-9]{4}" },
  choice: { label: "Choice", source: "Choices, one per line", example: "cat\ndog" },
};

export const SHOWN = 24; // tokens
const SETTLE_MS = 120;

export const prompt = signal("Once upon a time there was a");
export const chat = signal(false);
export const values = signal<Record<string, number>>({ temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.02 });
export const seed = signal(7);
export const constraint = signal("text");
export const source = signal("");
export const forced = signal<number[]>([]);
export const answer = signal<LabAnswer | null>(null);
export const problem = signal("");
export const busy = signal(false);

/** response_format of the request; undefined: none. Throws an Error if the input is invalid. */
function format(): Record<string, unknown> | undefined {
  const type = constraint.value;
  const text = source.value;
  if (type === "text" || (CONSTRAINTS[type]?.source && !text.trim())) return undefined;
  if (type === "json_object") return { type };
  if (type === "regex") return { type, regex: text };
  if (type === "choice") return { type, choice: text.split("\n").filter(Boolean) };
  try {
    return { type, json_schema: { name: "lab", schema: JSON.parse(text) as unknown } };
  } catch {
    throw new Error("The schema is not valid JSON.");
  }
}

export function body(): Record<string, unknown> {
  const given = chat.value ? { messages: [{ role: "user", content: prompt.value }] } : { prompt: prompt.value };
  const params = Object.fromEntries(PARAMS.map(({ name, off }) => [name, values.value[name] ?? off]));
  return { ...ofModel(), ...given, forced: forced.value, params: { ...params, seed: seed.value }, response_format: format(), top: SHOWN };
}

let abort: AbortController | null = null;

async function fetchNow(asked: Record<string, unknown>): Promise<void> {
  abort?.abort();
  const own = (abort = new AbortController());
  busy.value = true;
  try {
    answer.value = await fetchJson<LabAnswer>("/observe/lab", { body: asked, signal: own.signal });
    problem.value = "";
  } catch (error) {
    if (!own.signal.aborted) problem.value = errorMessage(error);
  } finally {
    if (abort === own) busy.value = false;
  }
}

/** Queries the server after each change, debounced. Returns a function that stops it. */
export function follow(): () => void {
  let timer = 0;
  const stop = effect(() => {
    clearTimeout(timer);
    let asked: Record<string, unknown>;
    try {
      asked = body();
    } catch (error) {
      abort?.abort(); // the answer to an earlier question would clear the message
      problem.value = errorMessage(error);
      return;
    }
    if (prompt.value) timer = window.setTimeout(() => void fetchNow(asked), SETTLE_MS);
  });
  return () => {
    stop();
    clearTimeout(timer);
    abort?.abort();
  };
}

export function setPrompt(text: string): void {
  forced.value = [];
  prompt.value = text;
}

export function setConstraint(type: string): void {
  backTo(0);
  constraint.value = type;
  source.value = CONSTRAINTS[type]?.example ?? "";
}

export function setParam(name: string, value: number): void {
  values.value = { ...values.value, [name]: value };
}

export function choose(id: number): void {
  forced.value = [...forced.value, id];
}

/** Keeps the first `count` accepted tokens. */
export function backTo(count: number): void {
  forced.value = forced.value.slice(0, Math.max(0, count));
}

/** Whether the answer on screen matches the current tokens. */
export function settled(): boolean {
  const now = answer.value;
  return now !== null && now.forced.length === forced.value.length && !busy.value;
}
