/** The live feed (/observe/live) as signals. */
import { batch, computed, signal } from "@preact/signals";
import type { Alert, Facts, StartStatus, Stats, StepWindow, Summary, Tick } from "./api";
import { ApiError, moveKeyToMemory, request, fetchJson } from "./http";
import { ofSource, type Source, source } from "./source";
import { serverEvents } from "./sse";

/** "loading": the server has no model yet. "off": it records no events. */
export type Connection = "connecting" | "loading" | "live" | "lost" | "locked" | "off";

export const connection = signal<Connection>("connecting");
/** What the server does before its model is loaded; null afterwards, undefined until it is known. */
export const start = signal<StartStatus | null | undefined>(undefined);
export const facts = signal<Facts | null>(null);
/** The engines to choose from, and whether there are several. */
export const sources = computed<Source[]>(() =>
  (facts.value?.models ?? []).flatMap(({ name, replicas }) => replicas.map(({ replica }) => ({ model: name, replica }))),
);
export const several = computed(() => (facts.value?.models.length ?? 0) > 1 || sources.value.length > 1);
export const stats = signal<Stats | null>(null);
export const alerts = signal<Alert[]>([]);
/** By number; `requestsVersion` changes when it does. */
export const requests = new Map<number, Summary>();
export const requestsVersion = signal(0);
/** The server's clock, µs since its start, and when it was read here. */
let clockAt = { server: 0, here: 0 };

const KEPT = 2000;
const START_POLL_MS = 250;
const listeners = new Set<(steps: StepWindow) => void>();
let abort: AbortController | null = null;

export function serverNow(): number {
  return clockAt.here ? clockAt.server + (performance.now() - clockAt.here) * 1000 : 0;
}

export function wallClock(t: number): number {
  return (facts.value?.started_unix ?? 0) + t / 1e6;
}

export function addRequests(changed: Summary[]): void {
  for (const summary of changed) requests.set(summary.number, summary);
  if (requests.size > KEPT) {
    const oldest = [...requests.keys()].sort((a, b) => a - b).slice(0, requests.size - KEPT);
    for (const number of oldest) requests.delete(number);
  }
  if (changed.length) requestsVersion.value += 1;
}

/** Subscribes to live steps; the feed carries steps only while there is a subscriber. */
export function onSteps(listener: (steps: StepWindow) => void): () => void {
  listeners.add(listener);
  if (listeners.size === 1) reconnect();
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) reconnect();
  };
}

/** Shows another engine. */
export function choose(chosen: Source): void {
  source.value = chosen;
  reconnect();
}

export function reconnect(): void {
  abort?.abort();
}

function applyTick(tick: Tick): void {
  clockAt = { server: tick.t, here: performance.now() };
  batch(() => {
    connection.value = "live";
    stats.value = tick.stats;
    if (tick.alerts.length || alerts.value.length) alerts.value = tick.alerts;
    addRequests(tick.requests);
  });
  if (tick.steps) for (const listener of listeners) listener(tick.steps);
}

/** Polls /health, which says what a server that starts is doing, and answers 200 all the while. */
async function loaded(signal: AbortSignal): Promise<void> {
  for (;;) {
    const status = await fetchJson<Partial<StartStatus>>("/health", { signal });
    start.value = status.phase === undefined ? null : (status as StartStatus);
    if (!start.value) return;
    connection.value = "loading";
    await pause(START_POLL_MS, signal);
  }
}

async function connect(signal: AbortSignal): Promise<void> {
  await loaded(signal);
  const known = await fetchJson<Facts>(ofSource("/observe/facts"), { signal });
  if (facts.value && facts.value.started_unix !== known.started_unix) requests.clear(); // the server was restarted
  facts.value = known;
  if (known.keys && known.scopes.includes("admin")) moveKeyToMemory();
  addRequests((await fetchJson<{ requests: Summary[] }>("/observe/requests?limit=200", { signal })).requests);
  const steps = listeners.size ? 1 : 0;
  const response = await request(ofSource(`/observe/live?interval_ms=${steps ? 250 : 500}&steps=${steps}`), { signal });
  for await (const { event, data } of serverEvents(response)) if (event === "tick") applyTick(JSON.parse(data) as Tick);
}

/** Reconnects for the lifetime of the page. */
export async function follow(): Promise<never> {
  for (let failures = 0; ; ) {
    abort = new AbortController();
    const { signal } = abort;
    try {
      await connect(signal);
      failures = 0;
      if (connection.value === "live") connection.value = "connecting";
    } catch (error) {
      if (!signal.aborted) {
        start.value ??= null;
        failures += 1;
        const known = error instanceof ApiError ? error : null;
        connection.value = known?.refusesKey ? "locked" : known?.status === 404 ? "off" : "lost";
      }
    }
    if (!signal.aborted) await pause(Math.min(5000, 500 * 2 ** Math.min(failures, 4)), signal);
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()));
  });
}
