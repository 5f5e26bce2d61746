/** All requests, live, each with its trace. */
import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Summary } from "../../lib/api";
import { fetchJson, errorMessage } from "../../lib/http";
import { addRequests, connection, requests, requestsVersion } from "../../lib/live";
import { go, route } from "../../lib/router";
import { useShortcuts } from "../../lib/shortcuts";
import { FINISHES } from "../../lib/labels";
import { Button, Empty, Legend, PageHeader, Problem, Segmented } from "../../parts/basics";
import { VirtualList } from "../../parts/virtual";
import { Detail } from "./detail";
import { ROW_HEIGHT, Row, RowHead, SHARES } from "./row";

interface Filters {
  state: "all" | "open" | "done";
  kind: string;
  finish: string;
  text: string;
  minMs: string;
}

interface Page {
  requests: Summary[];
  more: boolean;
  total: number;
}

const KINDS = ["chat", "completion", "response", "message", "ollama", "embedding", "lab"];
const ENDS = Object.keys(FINISHES);

function passes(one: Summary, { state, kind, finish, minMs }: Filters): boolean {
  if (state !== "all" && (state === "done") !== (one.state === "done")) return false;
  if (kind && one.kind !== kind) return false;
  if (finish && one.finish !== finish) return false;
  return !minMs || (one.e2e_us ?? 0) >= Number(minMs) * 1000;
}

export function Requests() {
  const filters = useSignal<Filters>({ state: "all", kind: "", finish: "", text: "", minMs: "" });
  const matched = useSignal<Set<number> | null>(null); // by the server's search, which includes stored texts
  const paused = useSignal<Summary[] | null>(null);
  const problem = useSignal("");
  const loading = useSignal(true);
  const more = useSignal(false);
  const search = useRef<HTMLInputElement>(null);

  const load = async (query = ""): Promise<Page | null> => {
    try {
      const page = await fetchJson<Page>(`/observe/requests?limit=500${query}`);
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
    return all.filter((one) => passes(one, filters.value) && (!found || found.has(one.number)));
  });
  const shown = items.value;
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
              <RowHead />
              <VirtualList
                label="Requests, newest first"
                items={shown}
                rowHeight={ROW_HEIGHT}
                reveal={place}
                onScrollEnd={older}
                render={(one) => <Row key={one.number} one={one} selected={one.number === shown[place]?.number} />}
              />
            </div>
          </>
        )}
      </div>
      {selected && <Detail key={selected} id={selected} />}
    </div>
  );
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
