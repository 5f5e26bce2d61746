/** Conversations kept in this browser (IndexedDB), the current one among them. Nothing of them is sent anywhere. */
import { signal } from "@preact/signals";
import { errorMessage } from "../../lib/http";
import { all, onChange, replaceMessages } from "./chat";
import { main } from "./lanes";
import { fromSaved, type SavedConversation, toSaved } from "./saved";

/** More are not kept: the oldest go. */
export const MAX_CONVERSATIONS = 200;
const SEARCHED = 20_000; // characters of a conversation that can be searched
const SAVE_MS = 400;
const KEEP = "penstock-keep-conversations";

export interface Listed {
  id: string;
  title: string;
  named: boolean; // by the user
  created: number;
  updated: number;
  model: string;
  text: string; // for the search
}

export const list = signal<Listed[]>([]);
export const current = signal<Pick<Listed, "id" | "title" | "named" | "created"> | null>(null);
export const keeping = signal(localStorage.getItem(KEEP) !== "no");
/** Why conversations cannot be kept. */
export const storeProblem = signal("");

let opening: Promise<IDBDatabase> | null = null;

function database(): Promise<IDBDatabase> {
  opening ??= new Promise((resolve, reject) => {
    const asked = indexedDB.open("penstock", 1);
    asked.onupgradeneeded = () => {
      asked.result.createObjectStore("list", { keyPath: "id" });
      asked.result.createObjectStore("bodies");
    };
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error ?? new Error("no IndexedDB"));
  });
  return opening;
}

async function inStores<T>(mode: IDBTransactionMode, work: (stores: { list: IDBObjectStore; bodies: IDBObjectStore }) => IDBRequest<T> | void): Promise<T | undefined> {
  const transaction = (await database()).transaction(["list", "bodies"], mode);
  const done = new Promise<void>((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = transaction.onerror = () => reject(transaction.error ?? new Error("not stored"));
  });
  const asked = work({ list: transaction.objectStore("list"), bodies: transaction.objectStore("bodies") });
  await done;
  return asked?.result;
}

export async function loadList(): Promise<void> {
  try {
    const found = await inStores("readonly", ({ list: listed }) => listed.getAll() as IDBRequest<Listed[]>);
    list.value = (found ?? []).sort((a, b) => b.updated - a.updated);
    storeProblem.value = "";
  } catch (error) {
    storeProblem.value = `This browser keeps no conversations: ${errorMessage(error)}`;
  }
}

let timer = 0;
onChange(() => {
  clearTimeout(timer);
  timer = window.setTimeout(() => void save(), SAVE_MS);
});
addEventListener("pagehide", () => timer && void save());

function snapshot(): SavedConversation | null {
  const now = current.value;
  if (!now || !all.value.length) return null;
  return toSaved(all.value, main.thread.value.at(-1) ?? null, { title: now.title, created: now.created, updated: Date.now(), model: main.model.value });
}

async function save(): Promise<void> {
  timer = 0;
  if (!all.value.length) return;
  current.value ??= { id: newId(), title: "", named: false, created: Date.now() };
  const first = all.value.find(({ role }) => role === "user")?.content.trim() ?? "";
  if (!current.value.named && !current.value.title) current.value = { ...current.value, title: titleOf(first) };
  const body = snapshot();
  if (!keeping.value || !body) return;
  await put({ ...current.value, updated: body.updated, model: body.model, text: searchedText() }, body);
}

async function put(listed: Listed, body: SavedConversation): Promise<void> {
  try {
    await inStores("readwrite", (stores) => {
      stores.list.put(listed);
      stores.bodies.put(body, listed.id);
    });
    storeProblem.value = "";
    const others = list.value.filter(({ id }) => id !== listed.id);
    list.value = [listed, ...others].sort((a, b) => b.updated - a.updated);
    const old = list.value.slice(MAX_CONVERSATIONS).map(({ id }) => id);
    if (old.length) await remove(...old);
  } catch (error) {
    storeProblem.value = `Not stored: ${errorMessage(error)}`;
  }
}

export async function remove(...ids: string[]): Promise<void> {
  await inStores("readwrite", (stores) => {
    for (const id of ids) {
      stores.list.delete(id);
      stores.bodies.delete(id);
    }
  });
  list.value = list.value.filter(({ id }) => !ids.includes(id));
  if (current.value && ids.includes(current.value.id)) startNew();
}

export function startNew(): void {
  if (timer) void save();
  clearTimeout(timer);
  timer = 0;
  current.value = null;
  replaceMessages([], null);
}

export async function open(listed: Listed): Promise<void> {
  const body = await readBody(listed.id);
  if (timer) await save();
  const { messages, last } = fromSaved(body);
  current.value = { id: listed.id, title: listed.title, named: listed.named, created: listed.created };
  replaceMessages(messages, last);
}

export async function readBody(id: string): Promise<SavedConversation> {
  const body = await inStores("readonly", ({ bodies }) => bodies.get(id) as IDBRequest<SavedConversation | undefined>);
  if (!body) throw new Error("This conversation is no longer stored.");
  return body;
}

export async function rename(listed: Listed, title: string): Promise<void> {
  const body = await readBody(listed.id);
  await put({ ...listed, title, named: true }, { ...body, title });
  if (current.value?.id === listed.id) current.value = { ...current.value, title, named: true };
}

/** A conversation from a file. */
export async function importConversation(text: string): Promise<void> {
  const { title, created, messages, last } = fromSaved(JSON.parse(text));
  if (!messages.length) throw new Error("The conversation has no messages.");
  startNew();
  current.value = { id: newId(), title: title || titleOf(messages[0]!.content), named: Boolean(title), created };
  replaceMessages(messages, last);
  await save();
}

export function setKeeping(on: boolean): void {
  keeping.value = on;
  localStorage.setItem(KEEP, on ? "yes" : "no");
  if (on) void save();
}

const titleOf = (text: string): string => text.replace(/\s+/g, " ").slice(0, 60) || "Conversation";
const searchedText = (): string => all.value.map(({ content }) => content).join("\n").slice(0, SEARCHED);

/** randomUUID is missing where the page is not of HTTPS or localhost. */
function newId(): string {
  return Date.now().toString(36) + [...crypto.getRandomValues(new Uint32Array(2))].map((part) => part.toString(36)).join("");
}
