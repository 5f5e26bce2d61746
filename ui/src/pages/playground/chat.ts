/** The conversation, a tree of messages: regenerating, editing and comparing add branches. */
import { signal } from "@preact/signals";
import { errorMessage, request } from "../../lib/http";
import { serverEvents } from "../../lib/sse";
import { type Lane, lanes, main } from "./lanes";
import { type Alternative, type Attachment, type DraftStep, Message, pathTo, type Timings, type Token, type Usage } from "./message";
import { requestBody } from "./request";
import type { ContextTrace } from "../../lib/api";

interface Delta {
  content?: string | null;
  reasoning_content?: string;
  tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
}

interface Chunk {
  id: string;
  model?: string;
  choices: {
    index: number;
    delta: Delta;
    logprobs: { content: Token[] } | null;
    finish_reason: string | null;
    drafts?: DraftStep[];
  }[];
  usage?: Usage | null;
  timings?: Timings;
  context?: ContextTrace;
  error?: { message: string };
}

/** All messages of the conversation, in the order in which they came. */
export const all = signal<Message[]>([]);
/** Called when the conversation has changed and should be stored. */
const listeners = new Set<() => void>();
export function onChange(listener: () => void): void {
  listeners.add(listener);
}
const changed = (): void => listeners.forEach((listener) => listener());

export function siblings(message: Message): Message[] {
  return all.value.filter((other) => other.parent === message.parent && other.role === message.role);
}

export function show(lane: Lane, message: Message): void {
  lane.chosen.value = new Map(lane.chosen.value).set(message.parent, message);
  changed();
}

function add(lane: Lane, ...messages: Message[]): void {
  all.value = [...all.value, ...messages];
  show(lane, messages[0]!);
}

/** Another conversation: its messages, and the branch that is shown. */
export function replaceMessages(messages: Message[], last: Message | null): void {
  stop();
  all.value = messages;
  const chosen = new Map<Message | null, Message>();
  for (const message of messages) chosen.set(message.parent, message); // the latest of each
  for (const message of pathTo(last)) chosen.set(message.parent, message);
  for (const lane of lanes.value) lane.chosen.value = chosen;
}

export function stop(): void {
  for (const lane of lanes.value) lane.running.value?.abort();
}

/** Asks in every lane. Lanes that have gone the same way so far share the question. */
export function sendMessage(content: string, attachments: Attachment[] = []): void {
  const asked = new Map<Message | null, Message>();
  for (const lane of lanes.value) {
    const after = lane.thread.value.at(-1) ?? null;
    const known = asked.get(after);
    const question = known ?? Object.assign(new Message(after, "user", content), { attachments });
    asked.set(after, question);
    if (known) show(lane, question);
    else add(lane, question);
    void answer(lane, question);
  }
}

/** Asks something else at the same place. */
export function editMessage(lane: Lane, message: Message, content: string): void {
  const question = Object.assign(new Message(message.parent, "user", content), { attachments: message.attachments });
  add(lane, question);
  void answer(lane, question);
}

export function regenerate(lane: Lane, message: Message): void {
  if (message.parent) void answer(lane, message.parent);
}

/** The results of an answer's tool calls, in their order, and the next answer. */
export function sendResults(lane: Lane, message: Message, results: string[]): void {
  let last = message;
  for (const [place, call] of message.calls.entries()) {
    last = Object.assign(new Message(last, "tool", results[place] ?? ""), { callId: call.id });
    add(lane, last);
  }
  void answer(lane, last);
}

/** Regenerates a response from token `at`, with `other` in its place. */
export function branch(lane: Lane, message: Message, at: number, other: Alternative): boolean {
  const kept: Token[] = message.tokens.slice(0, at).map((token) => ({ ...token, given: true }));
  const taken: Token = { ...other, top_logprobs: message.tokens[at]?.top_logprobs ?? [], given: true };
  const text = decoded([...kept, taken]);
  if (text === null || !message.parent) return false;
  void answer(lane, message.parent, [...kept, taken], text);
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

async function answer(lane: Lane, question: Message, given: Token[] = [], begun = ""): Promise<void> {
  lane.running.value?.abort();
  const abort = new AbortController();
  lane.running.value = abort;
  const settings = lane.settings.value;
  const count = settings.numbers.n ?? 1;
  const answers = Array.from({ length: count }, () => {
    const message = new Message(question, "assistant", begun);
    message.tokens = [...given];
    message.state = "streaming";
    message.model = lane.model.value;
    message.schema = settings.format === "schema" ? settings.schema : "";
    message.sentAt = performance.now();
    return message;
  });
  add(lane, ...answers);
  const end = (state: Message["state"], error = ""): void => {
    for (const message of answers)
      if (message.state === "streaming") {
        Object.assign(message, { state, error });
        message.changed();
      }
  };
  try {
    const body = requestBody(lane, pathTo(question), begun);
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
    if (lane.running.value === abort) lane.running.value = null;
    changed();
  }
}

function take(answers: Message[], chunk: Chunk): void {
  if (chunk.error) throw new Error(chunk.error.message);
  const now = performance.now();
  for (const choice of chunk.choices) {
    const message = answers[choice.index];
    if (!message) continue;
    message.id = chunk.id;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta;
    if (content || reasoning || calls || choice.logprobs?.content.length) {
      message.firstAt ||= now;
      message.lastAt = now;
      message.content += content ?? "";
      message.reasoning += reasoning ?? "";
      if (choice.logprobs) message.tokens.push(...choice.logprobs.content);
      for (const call of calls ?? []) takeCall(message, call);
    }
    for (const step of choice.drafts ?? []) message.steps.push({ ...step, at: now - message.sentAt });
    if (choice.finish_reason) {
      message.finish = choice.finish_reason;
      message.state = "done";
    }
    message.changed();
  }
  if (chunk.usage || chunk.timings || chunk.context)
    for (const message of answers) {
      message.usage = chunk.usage ?? message.usage;
      message.timings = chunk.timings ?? message.timings;
      message.context = chunk.context ?? message.context;
      message.changed();
    }
}

function takeCall(message: Message, { index, id, function: called }: NonNullable<Delta["tool_calls"]>[number]): void {
  const call = (message.calls[index] ??= { id: "", name: "", arguments: "" });
  call.id = id ?? call.id;
  call.name += called?.name ?? "";
  call.arguments += called?.arguments ?? "";
}

/** The messages as a request would send them: the shown branch without a last answer. */
export function askedPath(): Message[] {
  const path = main.thread.value;
  return path.at(-1)?.role === "assistant" ? path.slice(0, -1) : path;
}
