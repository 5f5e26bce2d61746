/** A message of a conversation, and what an answer carries beside its text. */
import { signal } from "@preact/signals";
import type { ContextTrace } from "../../lib/api";
import { perFrame } from "../../lib/frames";

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
  drafted_tokens?: number;
  accepted_tokens?: number;
}
/** A step of speculation: the first `accepted` of `tokens` had been drafted. `at` is milliseconds after the request was sent. */
export interface DraftStep {
  drafted: string[];
  accepted: number;
  tokens: string[];
  at?: number;
}
export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}
export interface Attachment {
  name: string;
  text: string;
}

export type Role = "user" | "assistant" | "tool";
export type State = "streaming" | "done" | "stopped" | "failed";

export class Message {
  static count = 0;
  readonly key = ++Message.count;
  /** Incremented at most once per frame when the message changes. */
  readonly version = signal(0);
  readonly changed = perFrame(() => (this.version.value += 1));
  tokens: Token[] = [];
  steps: DraftStep[] = [];
  state: State = "done";
  error = "";
  finish = "";
  id = ""; // response id
  model = ""; // that answered
  sentAt = 0;
  firstAt = 0;
  lastAt = 0;
  usage: Usage | null = null;
  timings: Timings | null = null;
  reasoning = "";
  calls: ToolCall[] = [];
  schema = ""; // that the answer was asked to match
  context: ContextTrace | null = null;
  attachments: Attachment[] = [];
  callId = ""; // of a tool's result

  constructor(
    readonly parent: Message | null,
    readonly role: Role,
    public content: string,
  ) {}
}

export function pathTo(message: Message | null): Message[] {
  const path: Message[] = [];
  for (let at = message; at; at = at.parent) path.unshift(at);
  return path;
}
