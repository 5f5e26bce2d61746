/** All requests, live, each with its trace. */
import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Summary } from "../../lib/api";
import { clock } from "../../lib/format";
import { fetchJson, errorMessage } from "../../lib/http";
import { addRequests, connection, requests, requestsVersion, wallClock } from "../../lib/live";
import { go, route } from "../../lib/router";
import { useShortcuts } from "../../lib/shortcuts";
import { FINISHES } from "../../lib/labels";
import { Button, Empty, Legend, PageHeader, Problem, Segmented } from "../../parts/basics";
import { VirtualList } from "../../parts/virtual";
import { Detail } from "./detail";
import { barScale, DESCENDING, NEWEST, ROW_HEIGHT, Row, RowHead, SHARES, SORTS, type Sort } from "./row";

interface Filters {
  state: "all" | "open" | "done";
  kind: string;
  finish: string;
  text: string;
  minMs: string;
  /** In µs since the server's start; only requests that were open then. */
  window: { from: number; to: number } | null;
}

interface Page {
  requests: Summary[];
  more: boolean;
  total: number;
}

const KINDS = ["chat", "completion", "response", "message", "ollama", "embedding", "lab"];
const ENDS = Object.keys(FINISHES);
const PAGE_SIZE = 500;

/** The window that the address names: the dashboard links to the requests of a moment. */
function windowOf(query: URLSearchParams): Filters["window"] {
  const [from, to] = [Number(query.get("from")), Number(query.get("to"))];
  return query.has("from") && Number.isFinite(from) && Number.isFinite(to) ? { from, to } : null;
}

function passes(one: Summary, { state, kind, finish, minMs, window }: Filters): boolean {
  if (window && (one.t > window.to || (one.end !== null && one.end < window.from))) return false;
  if (state !== "all" && (state === "done") !== (one.state === "done")) return false;
  if (kind && one.kind !== kind) return false;
  if (finish && one.finish !== finish) return false;
  return !minMs || (one.e2e_us ?? 0) >= Number(minMs) * 1000;
}

export function Requests() {
  const filters = useSignal<Filters>({ state: "all", kind: "", finish: "", text: "", minMs: "", window: windowOf(route.value.query) });
  const sort = useSignal<Sort>(NEWEST);
  const matched = useSignal<Set<number> | null>(null); // by the server's search, which includes stored texts
  const paused = useSignal<Summary[] | null>(null);
  const problem = useSignal("");
  const loading = useSignal(true);
  const more = useSignal(false);
  const search = useRef<HTMLInputElement>(null);

  const load = async (query = ""): Promise<Page | null> => {
    try {
      const page = await fetchJson<Page>(`/observe/requests?limit=${PAGE_SIZE}${query}`);
      addRequests(page.requests);
      problem.value = "";
      return page;
    } catch (error) {
      problem.value = errorMessage(error);
      return null;
    } finally {
      loading.value = false;
    }
  };
  const live = connection.value === "live";
  useEffect(() => {
    void load().then((page) => (more.value = page?.more ?? false));
  }, [live]);
  const query = route.value.query;
  useEffect(() => {
    const window = windowOf(query);
    if (!window) return;
    set({ window });
    void load(`&since=${window.from}&until=${window.to}`);
  }, [query]);
  const text = filters.value.text.trim();
  useEffect(() => {
    if (!text) {
      matched.value = null;
      return;
    }
    const timer = setTimeout(() => {
      void load(`&q=${encodeURIComponent(text)}`).then((page) => {
        if (page) matched.value = new Set(page.requests.map((one) => one.number));
      });
    }, 200);
    return () => clearTimeout(timer);
  }, [text]);

  const items = useComputed(() => {
    requestsVersion.value;
    const all = paused.value ?? [...requests.values()].sort((a, b) => b.number - a.number);
    const found = matched.value;
    const listed = all.filter((one) => passes(one, filters.value) && (!found || found.has(one.number)));
    const { by, down } = sort.value;
    if (by === NEWEST.by && down) return listed;
    const value = SORTS[by]!;
    return listed.sort((a, b) => compare(value(a), value(b), down) || b.number - a.number);
  });
  const shown = items.value;
  const scale = useMemo(() => barScale(shown), [shown]);
  const selected = route.value.rest[0] ?? "";
  const place = useMemo(
    () => shown.findIndex((one) => String(one.number) === selected || one.id === selected),
    [shown, selected],
  );
  const older = (): void => {
    if (!more.value || loading.value) return;
    loading.value = true;
    const oldest = Math.min(...requests.keys());
    void load(`&before=${oldest}`).then((page) => (more.value = page?.more ?? false));
  };
  /** Another order needs all recorded requests. */
  const sortBy = (by: string): void => {
    const down = sort.value.by === by ? !sort.value.down : DESCENDING.has(by);
    sort.value = { by, down };
    const all = async (): Promise<void> => {
      while (more.value) {
        const before = Math.min(...requests.keys());
        const page = await load(`&before=${before}`);
        more.value = page?.more ?? false;
        if (!page?.requests.length) return;
      }
    };
    void all();
  };
  const move = (by: number): void => {
    const next = shown[Math.max(0, Math.min(shown.length - 1, place < 0 ? 0 : place + by))];
    if (next) go("requests", String(next.number));
  };
  const pause = (): void => {
    paused.value = paused.value ? null : [...requests.values()].sort((a, b) => b.number - a.number);
  };
  useShortcuts("Requests", [
    { keys: "j", label: "Next request", run: () => move(1) },
    { keys: "k", label: "Previous request", run: () => move(-1) },
    { keys: "/", label: "Search", run: () => search.current?.focus() },
    { keys: " ", label: "Pause or resume", run: pause },
    { keys: "Escape", label: "Back to list", run: () => go("requests") },
  ]);
  const set = (change: Partial<Filters>): void => {
    filters.value = { ...filters.value, ...change };
  };
  return (
    <div class="split" data-open={selected !== ""}>
      <div class="split-list">
        <PageHeader title="Requests" terms="requests" lead="All requests, live, each with a trace of its stages.">
          <Button icon={paused.value ? "play" : "pause"} onClick={pause} aria-pressed={paused.value !== null}>
            {paused.value ? "Resume" : "Pause"}
          </Button>
        </PageHeader>
        <FilterBar filters={filters.value} set={set} search={search} />
        {filters.value.window && (
          <p class="window-filter">
            Open between {clock(wallClock(filters.value.window.from))} and {clock(wallClock(filters.value.window.to))}
            <Button icon="close" kind="quiet" label="Show all times" onClick={() => (set({ window: null }), go("requests"))} />
          </p>
        )}
        {problem.value && <Problem message={problem.value} onRetry={() => void load()} />}
        {shown.length === 0 ? (
          !loading.value && !problem.value && (
            <Empty icon="requests" title={requests.size ? "No requests match the filters" : "No requests yet"}>
              {requests.size ? "" : "Use the Playground, or send a request to /v1/chat/completions."}
            </Empty>
          )
        ) : (
          <>
            <Legend entries={SHARES} />
            <div class="list-box">
              <RowHead sort={sort.value} scale={scale} onSort={sortBy} />
              <VirtualList
                label={`Requests by ${sort.value.by}`}
                items={shown}
                rowHeight={ROW_HEIGHT}
                reveal={place}
                onScrollEnd={older}
                render={(one) => <Row key={one.number} one={one} scale={scale} selected={one.number === shown[place]?.number} />}
              />
            </div>
          </>
        )}
      </div>
      {selected && <Detail key={selected} id={selected} />}
    </div>
  );
}

/** What is not known comes last in either direction. */
function compare(a: number | string | null, b: number | string | null, down: boolean): number {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  const order = typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b)) : a - b;
  return down ? -order : order;
}

function FilterBar({
  filters,
  set,
  search,
}: {
  filters: Filters;
  set: (change: Partial<Filters>) => void;
  search: { current: HTMLInputElement | null };
}) {
  return (
    <div class="filters" role="search">
      <input
        ref={search}
        type="search"
        aria-label="Search requests"
        placeholder="Search id or text"
        value={filters.text}
        onInput={(event) => set({ text: event.currentTarget.value })}
      />
      <Segmented
        label="State"
        value={filters.state}
        options={[
          ["all", "All"],
          ["open", "Open"],
          ["done", "Done"],
        ]}
        onChange={(state) => set({ state })}
      />
      <Choice label="Kind" value={filters.kind} options={KINDS} onChange={(kind) => set({ kind })} />
      <Choice label="Finish" value={filters.finish} options={ENDS} onChange={(finish) => set({ finish })} />
      <input
        type="number"
        min={0}
        aria-label="Min latency (ms)"
        placeholder="≥ ms"
        value={filters.minMs}
        onInput={(event) => set({ minMs: event.currentTarget.value })}
      />
    </div>
  );
}

function Choice(props: { label: string; value: string; options: string[]; onChange: (value: string) => void }) {
  return (
    <select aria-label={props.label} value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
      <option value="">{props.label}: any</option>
      {props.options.map((option) => (
        <option key={option} value={option}>
          {option.replaceAll("_", " ")}
        </option>
      ))}
    </select>
  );
}
