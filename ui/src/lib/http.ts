/** Requests to this server. A key that is missing, wrong or lacks a scope opens the key dialog; the request is repeated with the
 * new key. */
import { signal } from "@preact/signals";

const KEY = "penstock-api-key";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly param: string | null = null,
    readonly code: string | null = null,
  ) {
    super(message);
  }

  /** No key, a wrong one, or one without the scope. */
  get refusesKey(): boolean {
    return this.status === 401 || (this.status === 403 && this.code === "forbidden");
  }
}

/** Why the key dialog is open; null while it is closed. */
export const keyPrompt = signal<string | null>(null);
let resolveKey: ((key: string | null) => void) | null = null;
let pendingKey: Promise<string | null> | null = null;
let declined = false;

/** Why a key cannot be sent in a header; empty if it can. fetch throws a network error at characters that no header holds,
 * and encodes other non-ASCII characters as Latin-1, which never matches. */
export function keyProblem(key: string): string {
  const [strange] = /[^ -~]/u.exec(key) ?? [];
  if (strange === undefined) return "";
  const code = strange.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0");
  const shown = /[\p{C}\p{Z}]/u.test(strange) ? `U+${code}` : `“${strange}” (U+${code})`;
  const hint = strange === "…" ? " It looks truncated: copy the full key." : "";
  return `API keys are printable ASCII; this one contains ${shown}.${hint}`;
}

let memoryKey: string | null = null; // of a key that turned out to be an admin key

/** A stored key that cannot be sent counts as none, so that the server asks for another. */
export function storedKey(): string | null {
  const key = memoryKey ?? sessionStorage.getItem(KEY);
  return key === null || keyProblem(key) ? null : key;
}

/** Admin keys are not stored without being asked for: from now on the key is lost when the page is closed or reloaded. */
export function moveKeyToMemory(): void {
  memoryKey = storedKey();
  sessionStorage.removeItem(KEY);
}

export function submitKey(key: string | null): void {
  if (key) {
    memoryKey = null;
    sessionStorage.setItem(KEY, key);
  }
  declined = key === null;
  keyPrompt.value = null;
  pendingKey = null;
  resolveKey?.(key);
}

/** Lets the key dialog open again after it was dismissed. */
export function allowKeyPrompt(): void {
  declined = false;
}

function promptForKey(why: string): Promise<string | null> {
  keyPrompt.value = why;
  pendingKey ??= new Promise((resolve) => (resolveKey = resolve));
  return pendingKey;
}

export interface RequestOptions {
  body?: unknown;
  signal?: AbortSignal;
}

export async function request(path: string, { body, signal: abort }: RequestOptions = {}): Promise<Response> {
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
    if (!error.refusesKey || declined) throw error;
    // Another request may have stored a key meanwhile.
    if (storedKey() === key) {
      const given = await promptForKey(key ? keyRefusal(error) : "This server requires an API key.");
      if (given === null) throw error;
    }
  }
}

/** A key that was revoked, has expired or lacks a scope is told so by the server. */
function keyRefusal({ code, message }: ApiError): string {
  return code === "invalid_api_key" ? "Invalid API key." : `${message.charAt(0).toUpperCase()}${message.slice(1)}.`;
}

export async function fetchJson<T>(path: string, options: RequestOptions = {}): Promise<T> {
  return (await (await request(path, options)).json()) as T;
}

export async function failure(response: Response): Promise<ApiError> {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text) as { error: { message: string; param?: string | null; code?: string | null } };
    return new ApiError(response.status, error.message, error.param ?? null, error.code ?? null);
  } catch {
    return new ApiError(response.status, text.slice(0, 300) || `HTTP ${response.status}`);
  }
}

export function errorMessage(error: unknown): string {
  if (error instanceof ApiError) return error.message;
  if (error instanceof TypeError) return "The server cannot be reached.";
  return error instanceof Error ? error.message : String(error);
}
