/** Requests to routes for operators, and the admin key.
 *
 * The key is in a variable of this module, and in the tab's storage only if the user asks for that. It is forgotten when the
 * server refuses it, when the user locks the pages, and after a while without input. It goes to this origin only. */
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { usePolling } from "./frames";
import { ApiError, errorMessage, failure, keyProblem, storedKey } from "./http";

const KEY = "penstock-admin-key";
const IDLE_MS = 15 * 60_000;

let adminKey: string | null = kept();
let idleTimer = 0;

/** Whether an admin key is held. */
export const unlocked = signal(adminKey !== null);
/** Why an admin key is asked for; null: the pages are open. */
export const lockReason = signal<string | null>(null);

function kept(): string | null {
  const key = sessionStorage.getItem(KEY);
  return key === null || keyProblem(key) ? null : key;
}

export function unlock(key: string, keep: boolean): void {
  adminKey = key;
  if (keep) sessionStorage.setItem(KEY, key);
  unlocked.value = true;
  lockReason.value = null;
  restartIdleTimer();
}

export function lock(reason: string): void {
  adminKey = null;
  sessionStorage.removeItem(KEY);
  clearTimeout(idleTimer);
  unlocked.value = false;
  lockReason.value = reason;
}

function restartIdleTimer(): void {
  clearTimeout(idleTimer);
  if (unlocked.value) idleTimer = window.setTimeout(() => lock("Locked after 15 minutes without input."), IDLE_MS);
}
restartIdleTimer();
for (const event of ["pointerdown", "keydown"]) addEventListener(event, restartIdleTimer, { passive: true });

export interface AdminOptions {
  method?: "GET" | "POST" | "PATCH" | "PUT" | "DELETE";
  body?: unknown;
  signal?: AbortSignal;
}

/** Sends the admin key or, without one, the tab's API key, which may be an admin key. */
export async function adminRequest(path: string, { method = "GET", body, signal: abort }: AdminOptions = {}): Promise<Response> {
  const own = adminKey;
  const key = own ?? storedKey();
  const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {};
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: abort,
    cache: "no-store",
    mode: "same-origin",
    credentials: "omit",
    redirect: "error",
  });
  if (response.ok) return response;
  const error = await failure(response);
  if (error.refusesKey && own === adminKey) lock(own === null ? "" : error.status === 401 ? "The server does not accept this key." : "This is not an admin key.");
  throw error;
}

export async function adminJson<T>(path: string, options: AdminOptions = {}): Promise<T> {
  return (await (await adminRequest(path, options)).json()) as T;
}

/** Polls while the pages are open. `load` is called again at once when one of `keys` changes; returns a function for that. */
export function useAdminPolling(load: (abort: AbortSignal) => Promise<void>, onError: (message: string) => void, everyMs: number, keys: unknown[] = []): () => Promise<void> {
  const open = lockReason.value === null;
  const alive = useRef(new AbortController());
  useEffect(() => {
    const abort = (alive.current = new AbortController());
    return () => abort.abort();
  }, []);
  const attempt = async (abort: AbortSignal): Promise<void> => {
    if (lockReason.value !== null) return;
    try {
      await load(abort);
      onError("");
    } catch (error) {
      if (!abort.aborted && lockReason.value === null) onError(errorMessage(error));
    }
  };
  usePolling(attempt, everyMs, [open, ...keys]);
  return () => attempt(alive.current.signal);
}

/** The field that the server named, and what is wrong with it. */
export function problemOf(error: unknown): { message: string; param: string | null } {
  return { message: errorMessage(error), param: error instanceof ApiError ? error.param : null };
}
