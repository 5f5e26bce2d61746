/** The inside of the model for one prompt: POST /observe/model. */
import { signal } from "@preact/signals";
import { errorMessage, fetchJson } from "../../lib/http";
import { ofModel } from "../../lib/source";

interface Named {
  id: number;
  text: string;
}

export interface ModelTrace {
  tokens: Named[];
  layer: number;
  position: number;
  num_layers: number;
  num_heads: number;
  num_kv_heads: number;
  hidden_size: number;
  us: number;
  norms: number[][]; // [layers + 1][tokens]
  values: number[][]; // [layers + 1][48]
  lens: { tokens: Named[]; probs: number[]; entropy_bits: number }[]; // [layers + 1]
  entropy_bits: number[][]; // [layers][heads]
  attention: number[][][]; // [heads][tokens][tokens] of `layer`
}

export const prompt = signal("The capital of France is");
export const layer = signal(0);
export const head = signal(0);
/** null: the last token. */
export const position = signal<number | null>(null);
export const trace = signal<ModelTrace | null>(null);
export const problem = signal("");
export const busy = signal(false);

let abort: AbortController | null = null;

/** Recomputes; the server drops a trace whose client has gone. */
export async function run(): Promise<void> {
  abort?.abort();
  const own = (abort = new AbortController());
  busy.value = true;
  const body = { ...ofModel(), prompt: prompt.value, layer: layer.value, ...(position.value === null ? {} : { position: position.value }) };
  try {
    trace.value = await fetchJson<ModelTrace>("/observe/model", { body, signal: own.signal });
    problem.value = "";
  } catch (error) {
    if (!own.signal.aborted) problem.value = errorMessage(error);
  } finally {
    if (abort === own) busy.value = false;
  }
}

export function leave(): void {
  abort?.abort();
}
