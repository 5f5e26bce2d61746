/** The conversation, a tree of messages: regenerating and editing add branches. */
import { computed, signal } from "@preact/signals";
import { perFrame } from "../../lib/frames";
import { request, errorMessage } from "../../lib/http";
import { serverEvents } from "../../lib/sse";
import { fields, settings } from "./params";

export interface Alternative {
  token: string;
  logprob: number;
  bytes: number[];
}
export interface Token extends Alternative {
  top_logprobs: Alternative[];
  /** Forced: copied from another branch, or selected by the user. */
  given?: boolean;
}
export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details: { cached_tokens: number };
}
export interface Timings {
  queue_seconds: number;
  prefill_seconds: number | null;
  decode_seconds: number | null;
  tokens_per_second: number | null;
}

export class Message {
  static count = 0;
  readonly key = ++Message.count;
  /** Incremented at most once per frame when the message changes. */
  readonly version = signal(0);
  readonly changed = perFrame(() => (this.version.value += 1));
  tokens: Token[] = [];
  state: "streaming" | "done" | "stopped" | "failed" = "done";
  error = "";
  finish = "";
  id = ""; // response id
  sentAt = 0;
  firstAt = 0;
  lastAt = 0;
  usage: Usage | null = null;
  timings: Timings | null = null;

  constructor(
    readonly parent: Message | null,
    readonly role: "user" | "assistant",
    public content: string,
  ) {}
}

interface Chunk {
  id: string;
  choices: {
    index: number;
    delta: { content?: string };
    logprobs: { content: Token[] } | null;
    finish_reason: string | null;
  }[];
  usage?: Usage | null;
  timings?: Timings;
  error?: { message: string };
}

const ALTERNATIVES = 5;
const all = signal<Message[]>([]);
const chosen = signal<Map<Message | null, Message>>(new Map());
const running = signal<AbortController | null>(null);

export const busy = computed(() => running.value !== null);
export const modelName = signal("");
export const modelNames = signal<string[]>([]);

export function siblings(message: Message): Message[] {
  return all.value.filter((other) => other.parent === message.parent && other.role === message.role);
}

export const thread = computed(() => {
  const path: Message[] = [];
  for (let at: Message | undefined; (at = chosen.value.get(path.at(-1) ?? null)); ) path.push(at);
  return path;
});

export function show(message: Message): void {
  chosen.value = new Map(chosen.value).set(message.parent, message);
}

function add(...messages: Message[]): void {
  all.value = [...all.value, ...messages];
  show(messages[0]!);
}

export function clear(): void {
  stop();
  all.value = [];
  chosen.value = new Map();
}

export function stop(): void {
  running.value?.abort();
}

export function sendMessage(content: string, after: Message | null = thread.value.at(-1) ?? null): void {
  const question = new Message(after, "user", content);
  add(question);
  void answer(question);
}

export function regenerate(message: Message): void {
  if (message.parent) void answer(message.parent);
}

/** Regenerates a response from token `at`, with `other` in its place. */
export function branch(message: Message, at: number, other: Alternative): boolean {
  const kept: Token[] = message.tokens.slice(0, at).map((token) => ({ ...token, given: true }));
  const taken: Token = { ...other, top_logprobs: message.tokens[at]?.top_logprobs ?? [], given: true };
  const text = decoded([...kept, taken]);
  if (text === null || !message.parent) return false;
  void answer(message.parent, [...kept, taken], text);
  return true;
}

/** Null if the tokens end within a UTF-8 character. */
export function decoded(tokens: Alternative[]): string | null {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(tokens.flatMap((token) => token.bytes)));
  } catch {
    return null;
  }
}

export function requestBody(path: Message[], begun = ""): Record<string, unknown> {
  const now = settings.value;
  const messages = path.map(({ role, content }) => ({ role, content }));
  if (now.system.trim()) messages.unshift({ role: "system" as never, content: now.system });
  const body: Record<string, unknown> = { model: modelName.value, messages };
  if (begun) {
    messages.push({ role: "assistant", content: begun });
    body.continue_final_message = true;
  }
  Object.assign(body, fields(now));
  if (now.probabilities) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
  return body;
}

export function pathTo(message: Message): Message[] {
  return message.parent ? [...pathTo(message.parent), message] : [message];
}

async function answer(question: Message, given: Token[] = [], begun = ""): Promise<void> {
  stop();
  const abort = new AbortController();
  running.value = abort;
  const count = settings.value.numbers.n ?? 1;
  const answers = Array.from({ length: count }, () => {
    const message = new Message(question, "assistant", begun);
    message.tokens = [...given];
    message.state = "streaming";
    message.sentAt = performance.now();
    return message;
  });
  add(...answers);
  const end = (state: Message["state"], error = ""): void => {
    for (const message of answers)
      if (message.state === "streaming") {
        Object.assign(message, { state, error });
        message.changed();
      }
  };
  try {
    const body = requestBody(pathTo(question), begun);
    const asked = { ...body, stream: true, stream_options: { include_usage: true }, include_timings: true };
    const response = await request("/v1/chat/completions", { body: asked, signal: abort.signal });
    for await (const { data } of serverEvents(response)) {
      if (data === "[DONE]") break;
      take(answers, JSON.parse(data) as Chunk);
    }
    end("failed", "The stream ended early.");
  } catch (error) {
    end(abort.signal.aborted ? "stopped" : "failed", abort.signal.aborted ? "" : errorMessage(error));
  } finally {
    if (running.value === abort) running.value = null;
  }
}

function take(answers: Message[], chunk: Chunk): void {
  if (chunk.error) throw new Error(chunk.error.message);
  const now = performance.now();
  for (const choice of chunk.choices) {
    const message = answers[choice.index];
    if (!message) continue;
    message.id = chunk.id;
    if (choice.delta.content || choice.logprobs?.content.length) {
      message.firstAt ||= now;
      message.lastAt = now;
      message.content += choice.delta.content ?? "";
      if (choice.logprobs) message.tokens.push(...choice.logprobs.content);
    }
    if (choice.finish_reason) {
      message.finish = choice.finish_reason;
      message.state = "done";
    }
    message.changed();
  }
  if (chunk.usage || chunk.timings)
    for (const message of answers) {
      message.usage = chunk.usage ?? message.usage;
      message.timings = chunk.timings ?? message.timings;
      message.changed();
    }
}
