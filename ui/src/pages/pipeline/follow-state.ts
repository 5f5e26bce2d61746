/** One request to follow: its trace from the server, and its texts, where the server keeps them or this page has sent it. */
import { signal } from "@preact/signals";
import type { LabAnswer, RequestDetail, StepWindow } from "../../lib/api";
import { errorMessage, fetchJson, request } from "../../lib/http";
import { facts } from "../../lib/live";

export interface Piece {
  ms: number; // since it was sent
  text: string; // bytes of the stream, as text
}

/** A request of this page, with what only its client knows. */
export interface Sent {
  id: string; // of the response
  body: Record<string, unknown>;
  pieces: Piece[];
  prompt: number[];
  output: number[];
}

/** The prompt as the model saw it. */
export interface Texts {
  text: string;
  ids: number[];
  strings: string[];
  output: number[];
  outputStrings: string[];
}

interface Tokenized {
  tokens: number[];
  token_strs: string[];
}

export const sent = signal<Sent | null>(null);
export const sending = signal(false);
export const problem = signal("");

/** Sends a chat request and reads its stream byte for byte. Gives the id of the response. */
export async function send(prompt: string, maxTokens: number, temperature: number): Promise<string | null> {
  const body = {
    model: facts.value?.model.name,
    messages: [{ role: "user", content: prompt }],
    max_tokens: maxTokens,
    temperature,
    seed: Math.floor(Math.random() * 1e6),
    stream: true,
    return_token_ids: true,
  };
  sending.value = true;
  problem.value = "";
  const begun = performance.now();
  const made: Sent = { id: "", body, pieces: [], prompt: [], output: [] };
  try {
    const response = await request("/v1/chat/completions", { body });
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      made.pieces.push({ ms: performance.now() - begun, text: value });
      const lines = (rest + value).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) read(made, line);
    }
    sent.value = made;
    return made.id;
  } catch (error) {
    problem.value = errorMessage(error);
    return null;
  } finally {
    sending.value = false;
  }
}

function read(made: Sent, line: string): void {
  if (!line.startsWith("data: {")) return;
  const chunk = JSON.parse(line.slice(6)) as {
    id?: string;
    error?: { message: string };
    prompt_token_ids?: number[];
    choices?: { token_ids?: number[] }[];
  };
  if (chunk.error) throw new Error(chunk.error.message);
  made.id ||= chunk.id ?? "";
  made.prompt.push(...(chunk.prompt_token_ids ?? []));
  made.output.push(...(chunk.choices?.[0]?.token_ids ?? []));
}

export function fetchDetail(id: string, abort: AbortSignal): Promise<RequestDetail> {
  return fetchJson<RequestDetail>(`/observe/requests/${encodeURIComponent(id)}`, { signal: abort });
}

/** What this page sent, if it is this request. */
export const ownOf = (detail: RequestDetail): Sent | null => (sent.value && sent.value.id.endsWith(detail.id) ? sent.value : null);

const tokenize = (model: string | null, prompt: string): Promise<Tokenized> =>
  fetchJson<Tokenized>("/tokenize", { body: { model: model ?? undefined, prompt, add_special_tokens: false, return_token_strs: true } });

/** null: neither the server nor this page has them. */
export async function fetchTexts(detail: RequestDetail): Promise<Texts | null> {
  const own = ownOf(detail);
  const text = own ? (await fetchJson<{ prompt: string }>("/detokenize", { body: { model: detail.model ?? undefined, tokens: own.prompt } })).prompt : detail.texts?.prompts[0];
  if (text === undefined) return null;
  const prompt = await tokenize(detail.model, text);
  const answer = own
    ? (await fetchJson<{ prompt: string }>("/detokenize", { body: { model: detail.model ?? undefined, tokens: own.output } })).prompt
    : (detail.texts?.answers[0] ?? "");
  const output = answer ? await tokenize(detail.model, answer) : { tokens: [], token_strs: [] };
  return { text, ids: own?.prompt ?? prompt.tokens, strings: prompt.token_strs, output: own?.output ?? output.tokens, outputStrings: output.token_strs };
}

/** The steps it was in. */
export function fetchSteps({ model, replica }: RequestDetail, first: number, last: number): Promise<StepWindow> {
  const at = `model=${encodeURIComponent(model ?? "")}&replica=${replica ?? 0}`;
  return fetchJson<StepWindow>(`/observe/steps?from=${first}&to=${last}&columns=${Math.max(1, last - first + 1)}&${at}`);
}

const LAB_PARAMS = ["temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed"];

/** The distribution that its `place`th token was drawn from, computed anew. */
export function fetchDraw(detail: RequestDetail, texts: Texts, place: number, abort: AbortSignal): Promise<LabAnswer> {
  const params = Object.fromEntries(LAB_PARAMS.filter((name) => name in detail.params).map((name) => [name, detail.params[name]]));
  const body = { model: detail.model ?? undefined, tokens: texts.ids, forced: texts.output.slice(0, place), params, top: 8 };
  return fetchJson<LabAnswer>("/observe/lab", { body, signal: abort });
}
