import type { Summary } from "../../lib/api";
import { clock, count, duration } from "../../lib/format";
import { serverNow, stats, wallClock, several } from "../../lib/live";
import { FINISHES, finishTone, shortError } from "../../lib/labels";
import { Badge } from "../../parts/basics";

export const ROW_HEIGHT = 44;

/** Segments of the latency bar. */
export const SHARES = [
  ["wait", "Queue"],
  ["prefill", "Prefill"],
  ["decode", "Decode"],
] as const;

/** End-to-end latency, or the time since arrival of an open request. */
export function elapsed(one: Summary): number {
  return one.e2e_us ?? (one.end ?? Math.max(serverNow(), one.t)) - one.t;
}

export function stateOf(one: Summary): string {
  if (one.state !== "done") return one.state;
  if (one.finish === "content_filter") return "filtered";
  return (one.finish ?? "done").replaceAll("_", " ");
}

/** Model and replica, as far as they are known. */
export function placeOf({ model, replica }: Summary): string {
  return replica === null ? (model ?? "") : `${model}/${replica}`;
}

export interface Sort {
  by: string;
  down: boolean;
}

/** What the columns sort by. */
export const SORTS: Record<string, (one: Summary) => number | string | null> = {
  arrival: (one) => one.number,
  prompt: (one) => one.prompt_tokens,
  output: (one) => one.output_tokens,
  TTFT: (one) => one.ttft_us,
  total: elapsed,
  state: stateOf,
};
export const DESCENDING = new Set(["arrival", "prompt", "output", "TTFT", "total"]);
export const NEWEST: Sort = { by: "arrival", down: true };

const OUTLIER = 3;

/** Microseconds of a full bar: the longest request, unless few are much longer than all others; those are cut. */
export function barScale(shown: readonly Summary[]): number {
  const times = shown.map(elapsed).sort((a, b) => a - b);
  const most = times.at(-1) ?? 1;
  const usual = times[Math.floor(times.length * 0.95)] ?? most;
  return Math.max(1, most > OUTLIER * usual ? 1.2 * usual : most);
}

export function RowHead({ sort, scale, onSort }: { sort: Sort; scale: number; onSort: (by: string) => void }) {
  const head = (by: string, text: string, detail = "", name = "") => (
    <span class={name}>
      <button type="button" title={`Sort by ${by}`} aria-pressed={sort.by === by} data-down={sort.down} onClick={() => onSort(by)}>
        {text}
      </button>
      {detail && <small>{detail}</small>}
    </span>
  );
  return (
    <div class="request-row head">
      {head("arrival", "Request")}
      {head("prompt", "Prompt", "", "num")}
      {head("output", "Output", "", "num")}
      {head("TTFT", "TTFT", "", "num")}
      {head("total", "Total", `0–${duration(scale)}`)}
      {head("state", "State")}
    </div>
  );
}

export function Row({ one, scale, selected }: { one: Summary; scale: number; selected: boolean }) {
  if (one.state !== "done") stats.value; // re-render as time passes
  const total = elapsed(one);
  return (
    <a class="request-row" href={`#/requests/${one.number}`} aria-current={selected ? "true" : undefined}>
      <span class="title">
        <b>#{one.number}</b> {one.kind} {one.opening && <time>{clock(wallClock(one.t))}</time>}
        <small dir="auto">
          {several.value && one.model !== null && `${placeOf(one)} · `}
          {one.opening ? `“${one.opening}”` : clock(wallClock(one.t))}
        </small>
      </span>
      <span class="num">
        {count(one.prompt_tokens)}
        {one.cached_tokens ? <small class="cached">{count(one.cached_tokens)} cached</small> : null}
      </span>
      <span class="num">
        {count(one.output_tokens)}
        {one.tokens_per_s ? <small>{one.tokens_per_s.toFixed(1)}/s</small> : null}
      </span>
      <span class="num">{duration(one.ttft_us)}</span>
      <span>
        {duration(total)}
        <Split one={one} total={total} scale={scale} />
      </span>
      <span>
        <Badge tone={finishTone(one.finish)} title={one.error?.message ?? FINISHES[one.finish ?? ""]}>{stateOf(one)}</Badge>
        {one.error?.code && <small>{shortError(one.error.code)}</small>}
      </span>
    </a>
  );
}

/** Queue, prefill (to the first token) and decode, on the time scale that all rows share. A rejected request has only
 * intake; one without output (an embedding) ends with prefill. */
function Split({ one, total, scale }: { one: Summary; total: number; scale: number }) {
  const queue = one.queue_us ?? (one.state === "queued" ? total : 0);
  const first = one.ttft_us ?? (one.state === "running" || !one.output_tokens ? total : queue);
  const parts: [string, number][] =
    one.finish === "rejected"
      ? [["intake", total]]
      : [
          ["wait", queue],
          ["prefill", first - queue],
          ["decode", total - first],
        ];
  const share = (us: number): string => `${Math.max(0, Math.min(100, (us / scale) * 100))}%`;
  return (
    <i class="split-bar" data-cut={total > scale}>
      {parts.map(([colour, us]) => (
        <i key={colour} data-colour={colour} style={{ width: share(us) }} />
      ))}
    </i>
  );
}
