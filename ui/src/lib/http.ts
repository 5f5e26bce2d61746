/** Requests to this server. A 401 opens the key dialog; the request goes on when a key has been given. */
import { signal } from "@preact/signals";

const KEY = "penstock-api-key";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly param: string | null = null,
  ) {
    super(message);
  }
}

/** Why a key is asked for; null while none is. */
export const keyAsked = signal<string | null>(null);
let answered: ((key: string | null) => void) | null = null;
let asking: Promise<string | null> | null = null;
let declined = false;

/** What keeps a key from being sent; empty if nothing does. fetch throws at what a header cannot hold, as if there were
 * no server, and sends other characters beyond ASCII in Latin-1, in which the server would not know them. */
export function keyProblem(key: string): string {
  const [strange] = /[^ -~]/u.exec(key) ?? [];
  if (strange === undefined) return "";
  const code = strange.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0");
  const shown = /[\p{C}\p{Z}]/u.test(strange) ? `U+${code}` : `“${strange}” (U+${code})`;
  const hint = strange === "…" ? " It looks shortened: copy the whole key." : "";
  return `A key cannot have ${shown} in it, only plain letters, digits and signs (ASCII).${hint}`;
}

/** One that could not be sent is as good as none: the server then asks for another. */
export function storedKey(): string | null {
  const key = sessionStorage.getItem(KEY);
  return key === null || keyProblem(key) ? null : key;
}

export function giveKey(key: string | null): void {
  if (key) sessionStorage.setItem(KEY, key);
  declined = key === null;
  keyAsked.value = null;
  asking = null;
  answered?.(key);
}

/** After the dialog was closed without a key it stays closed, until this. */
export function allowAsking(): void {
  declined = false;
}

function askForKey(why: string): Promise<string | null> {
  keyAsked.value = why;
  asking ??= new Promise((resolve) => (answered = resolve));
  return asking;
}

export interface Asked {
  body?: unknown;
  signal?: AbortSignal;
}

export async function ask(path: string, { body, signal: abort }: Asked = {}): Promise<Response> {
  for (;;) {
    const key = storedKey();
    const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {};
    if (body !== undefined) headers["content-type"] = "application/json";
    const response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: abort,
      cache: "no-store",
    });
    if (response.ok) return response;
    const error = await failure(response);
    if (error.status !== 401 || declined) throw error;
    // Another request may have got a key while this one was under way.
    if (storedKey() === key) {
      const given = await askForKey(key ? "The server does not know this key." : "This server asks for a key.");
      if (given === null) throw error;
    }
  }
}

export async function askJson<T>(path: string, asked: Asked = {}): Promise<T> {
  return (await (await ask(path, asked)).json()) as T;
}

async function failure(response: Response): Promise<ApiError> {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text) as { error: { message: string; param?: string | null } };
    return new ApiError(response.status, error.message, error.param ?? null);
  } catch {
    return new ApiError(response.status, text.slice(0, 300) || `HTTP ${response.status}`);
  }
}

export function explained(error: unknown): string {
  if (error instanceof ApiError) return error.message;
  if (error instanceof TypeError) return "The server cannot be reached.";
  return error instanceof Error ? error.message : String(error);
}
