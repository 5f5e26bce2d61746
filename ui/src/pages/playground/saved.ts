/** A conversation as it is stored and exported; reading checks everything, since a file may come from anywhere. */
import { type Attachment, type DraftStep, Message, type Role, type State, type ToolCall } from "./message";

export const FORMAT = "penstock-conversation";
const VERSION = 1;
/** Token probabilities are kept for the newest tokens only: they are a hundred times as large as the text. */
const KEPT_TOKENS = 4000;
const MAX_MESSAGES = 5000;
const MAX_TEXT = 4_000_000; // characters

const PLAIN = ["content", "error", "finish", "id", "model", "reasoning", "schema", "callId"] as const;

export interface SavedMessage extends Partial<Record<(typeof PLAIN)[number], string>> {
  parent: number | null; // index in the list
  role: Role;
  state?: State;
  [other: string]: unknown;
}

export interface SavedConversation {
  format: typeof FORMAT;
  version: number;
  title: string;
  created: number; // Unix milliseconds
  updated: number;
  model: string;
  shown: number | null; // the last message of the shown branch
  messages: SavedMessage[];
}

export function toSaved(messages: Message[], last: Message | null, head: Pick<SavedConversation, "title" | "created" | "updated" | "model">): SavedConversation {
  const places = new Map(messages.map((message, place) => [message, place]));
  let room = KEPT_TOKENS;
  const kept = new Set<Message>();
  for (const message of messages.toReversed()) if ((room -= message.tokens.length) >= 0) kept.add(message);
  return {
    format: FORMAT,
    version: VERSION,
    ...head,
    shown: last ? (places.get(last) ?? null) : null,
    messages: messages.map((message) => ({
      parent: message.parent ? (places.get(message.parent) ?? null) : null,
      role: message.role,
      state: message.state === "streaming" ? "stopped" : message.state,
      ...Object.fromEntries(PLAIN.filter((name) => message[name]).map((name) => [name, message[name]])),
      ...(message.attachments.length ? { attachments: message.attachments } : {}),
      ...(message.calls.length ? { calls: message.calls } : {}),
      ...(message.usage ? { usage: message.usage, timings: message.timings, context: message.context } : {}),
      ...(message.firstAt ? { times: [message.firstAt - message.sentAt, message.lastAt - message.sentAt] } : {}),
      ...(kept.has(message) && message.tokens.length ? { tokens: message.tokens } : {}),
      ...(kept.has(message) && message.steps.length ? { steps: message.steps } : {}),
    })),
  };
}

/** Throws an Error that says what is wrong with it. */
export function fromSaved(saved: unknown): { title: string; created: number; messages: Message[]; last: Message | null } {
  const { messages: listed, title, created, shown } = object(saved, "The file");
  if (!Array.isArray(listed)) throw new Error("This is no conversation: it has no list of messages.");
  if (listed.length > MAX_MESSAGES) throw new Error(`The conversation has more than ${MAX_MESSAGES} messages.`);
  const messages: Message[] = [];
  for (const [place, one] of listed.entries()) {
    const entry = object(one, `Message ${place + 1}`);
    const ofApi = entry.parent === undefined; // a plain list of messages, which may begin with a system prompt
    if (!ofApi || entry.role !== "system") messages.push(readMessage(entry, place, messages));
  }
  const last = typeof shown === "number" ? messages[shown] : messages.at(-1);
  return {
    title: typeof title === "string" ? title.slice(0, 200) : "",
    created: typeof created === "number" ? created : Date.now(),
    messages,
    last: last ?? null,
  };
}

function readMessage(entry: Record<string, unknown>, place: number, before: Message[]): Message {
  const { role, parent, content = "", state } = entry;
  const what = `Message ${place + 1}`;
  if (role !== "user" && role !== "assistant" && role !== "tool") throw new Error(`${what}: its role is none of user, assistant, tool.`);
  if (typeof content !== "string" || content.length > MAX_TEXT) throw new Error(`${what}: its content is no text, or too long.`);
  const above = parent === undefined ? (before.at(-1) ?? null) : parent === null ? null : before[parent as number];
  if (above === undefined) throw new Error(`${what}: its parent is no earlier message.`);
  const message = new Message(above, role, content);
  for (const name of PLAIN) if (name !== "content" && typeof entry[name] === "string") message[name] = entry[name];
  if (state === "failed" || state === "stopped") message.state = state;
  message.attachments = list(entry.attachments, (one): one is Attachment & Fields => typeof one.name === "string" && typeof one.text === "string");
  message.calls = list(entry.calls, (one): one is ToolCall & Fields => [one.id, one.name, one.arguments].every((text) => typeof text === "string"));
  message.tokens = list(entry.tokens, isToken) as never;
  message.steps = list(entry.steps, isStep) as never;
  const [first, end] = list2(entry.times);
  Object.assign(message, { firstAt: first, lastAt: end });
  if (isUsage(entry.usage)) message.usage = entry.usage as never;
  if (isObject(entry.timings)) message.timings = entry.timings as never;
  if (isObject(entry.context) && Array.isArray(entry.context.parts)) message.context = entry.context as never;
  return message;
}

type Fields = Record<string, unknown>;
const isObject = (value: unknown): value is Fields => typeof value === "object" && value !== null && !Array.isArray(value);
const texts = (value: unknown): value is string[] => Array.isArray(value) && value.every((one) => typeof one === "string");
const isAlternative = (one: Fields): boolean => typeof one.token === "string" && typeof one.logprob === "number" && Array.isArray(one.bytes);
const isToken = (one: Fields): one is Fields =>
  isAlternative(one) && Array.isArray(one.top_logprobs) && one.top_logprobs.every((other: unknown) => isObject(other) && isAlternative(other));
const isStep = (one: Fields): one is DraftStep & Fields => texts(one.drafted) && texts(one.tokens) && typeof one.accepted === "number";
const isUsage = (value: unknown): boolean =>
  isObject(value) && typeof value.prompt_tokens === "number" && typeof value.completion_tokens === "number" && isObject(value.prompt_tokens_details);

function object(value: unknown, what: string): Fields {
  if (!isObject(value)) throw new Error(`${what} is no JSON object.`);
  return value;
}

function list<T>(value: unknown, fits: (one: Fields) => one is Fields & T): T[] {
  return Array.isArray(value) ? value.filter((one): one is Fields & T => isObject(one) && fits(one)) : [];
}

function list2(value: unknown): [number, number] {
  return Array.isArray(value) && value.every((one) => typeof one === "number" && Number.isFinite(one)) ? [value[0] as number, value[1] as number] : [0, 0];
}

/** The shown branch, for people. */
export function toMarkdown(title: string, path: Message[]): string {
  const heading = { user: "You", assistant: "Assistant", tool: "Tool" };
  const parts = path.map(({ role, content, model, calls, attachments }) =>
    [
      `## ${heading[role]}${role === "assistant" && model ? ` (${model})` : ""}`,
      ...attachments.map(({ name }) => `*Attached: ${name}*`),
      ...(content ? [content] : []),
      ...calls.map(({ name, arguments: given }) => `*Calls* \`${name}(${given})\``),
    ].join("\n\n"),
  );
  return `${[`# ${title}`, ...parts].join("\n\n")}\n`;
}
