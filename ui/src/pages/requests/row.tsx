import type { Summary } from "../../lib/api";
import { clock, count, duration } from "../../lib/format";
import { serverNow, stats, wallClock } from "../../lib/live";
import { FINISHES, finishTone } from "../../lib/words";
import { Badge } from "../../parts/basics";

export const ROW_HEIGHT = 44;

/** What the bar of a row is made of. */
export const SHARES = [
  ["wait", "Waiting"],
  ["prefill", "Prefill: reading the prompt"],
  ["decode", "Decode: writing the answer"],
] as const;

/** How long so far, for one that is still under way. */
export function elapsed(one: Summary): number {
  return one.e2e_us ?? (one.end ?? Math.max(serverNow(), one.t)) - one.t;
}

export function stateOf(one: Summary): string {
  if (one.state !== "done") return one.state;
  return (one.finish ?? "done").replaceAll("_", " ");
}

export function RowHead() {
  return (
    <div class="request-row head" aria-hidden="true">
      <span>Request</span>
      <span class="num">Prompt</span>
      <span class="num">Output</span>
      <span class="num">First token</span>
      <span>Total</span>
      <span>State</span>
    </div>
  );
}

export function Row({ one, selected }: { one: Summary; selected: boolean }) {
  if (one.state !== "done") stats.value; // its time runs
  const total = elapsed(one);
  return (
    <a class="request-row" href={`#/requests/${one.number}`} aria-current={selected ? "true" : undefined}>
      <span class="title">
        <b>#{one.number}</b> {one.kind}
        <small>{clock(wallClock(one.t))}</small>
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
        <Badge tone={finishTone(one.finish)} title={FINISHES[one.finish ?? ""]}>{stateOf(one)}</Badge>
      </span>
    </a>
  );
}

/** Queue, up to the first token, and after it: shares of the whole. Of what was refused there is only the way in, and
 * what has no output (an embedding) never gets beyond prefill. */
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
