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

export function RowHead() {
  return (
    <div class="request-row head" aria-hidden="true">
      <span>Request</span>
      <span class="num">Prompt</span>
      <span class="num">Output</span>
      <span class="num">TTFT</span>
      <span>Total</span>
      <span>State</span>
    </div>
  );
}

export function Row({ one, selected }: { one: Summary; selected: boolean }) {
  if (one.state !== "done") stats.value; // re-render as time passes
  const total = elapsed(one);
  return (
    <a class="request-row" href={`#/requests/${one.number}`} aria-current={selected ? "true" : undefined}>
      <span class="title">
        <b>#{one.number}</b> {one.kind}
        <small>
          {several.value && one.model !== null && `${placeOf(one)} · `}
          {clock(wallClock(one.t))}
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
        <Split one={one} total={total} />
      </span>
      <span>
        <Badge tone={finishTone(one.finish)} title={one.error?.message ?? FINISHES[one.finish ?? ""]}>{stateOf(one)}</Badge>
        {one.error?.code && <small>{shortError(one.error.code)}</small>}
      </span>
    </a>
  );
}

/** Shares of queue, prefill (to the first token) and decode. A rejected request has only intake; one without output (an
 * embedding) ends with prefill. */
function Split({ one, total }: { one: Summary; total: number }) {
  if (one.finish === "rejected") {
    return (
      <i class="split-bar">
        <i data-colour="intake" style={{ width: "100%" }} />
      </i>
    );
  }
  const queue = one.queue_us ?? (one.state === "queued" ? total : 0);
  const first = one.ttft_us ?? (one.state === "running" || !one.output_tokens ? total : queue);
  const share = (us: number): string => `${Math.max(0, Math.min(100, (us / Math.max(1, total)) * 100))}%`;
  return (
    <i class="split-bar">
      <i data-colour="wait" style={{ width: share(queue) }} />
      <i data-colour="prefill" style={{ width: share(first - queue) }} />
      <i data-colour="decode" style={{ width: share(total - first) }} />
    </i>
  );
}
