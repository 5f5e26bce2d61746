/** Live use of a key or tenant against its limits. */
import { count, usd } from "../../lib/format";
import type { Limits } from "./api";

/** One limit: used by requests that have ended, and reserved by open ones. */
export interface LimitUse {
  settled: number;
  reserved: number;
}
/** Of the last 60 seconds, the UTC day and month. */
export type Use = Record<keyof Limits, LimitUse>;

interface Row {
  limit: keyof Limits;
  name: string;
  short: string;
  format: (value: number) => string;
}

const ROWS: Row[] = [
  { limit: "requests_per_minute", name: "Requests in the last minute", short: "requests/min", format: count },
  { limit: "tokens_per_minute", name: "Tokens in the last minute", short: "tokens/min", format: count },
  { limit: "concurrent_requests", name: "Concurrent requests", short: "concurrent", format: count },
  { limit: "usd_per_day", name: "USD today (UTC)", short: "today", format: usd },
  { limit: "usd_per_month", name: "USD this month (UTC)", short: "this month", format: usd },
];

const sumOf = ({ settled, reserved }: LimitUse): number => settled + reserved;

/** Every limit that is set, and every figure that is not zero. */
export function UseMeters({ limits, use, owner }: { limits: Limits; use: Use | undefined; owner: string }) {
  const rows = ROWS.filter((row) => limits[row.limit] !== null || (use && sumOf(use[row.limit]) > 0));
  if (!rows.length) return <p class="small muted">No limits{use ? ", and no use now" : ""}.</p>;
  return (
    <ul class="meters">
      {rows.map((row) => (
        <Meter key={row.limit} row={row} limit={limits[row.limit]} use={use} owner={owner} />
      ))}
    </ul>
  );
}

function Meter({ row, limit, use, owner }: { row: Row; limit: number | null; use: Use | undefined; owner: string }) {
  const used = use ? sumOf(use[row.limit]) : 0;
  const reserved = use && row.limit !== "concurrent_requests" ? use[row.limit].reserved : 0; // that is open requests alone
  const share = (value: number): string => `${Math.min(100, (100 * value) / Math.max(limit ?? 1, 1e-9))}%`;
  const full = limit !== null && used >= limit;
  const figures = `${use ? row.format(used) : "–"}${limit === null ? "" : ` of ${row.format(limit)}`}`;
  return (
    <li data-limit={row.limit} data-full={full}>
      <span>{row.name}</span>
      <span class="num">
        {figures}
        {reserved > 0 && <small> ({row.format(reserved)} reserved)</small>}
      </span>
      {limit !== null && (
        <div class="meter" role="meter" aria-label={`${row.name} of ${owner}`} aria-valuemin={0} aria-valuemax={limit} aria-valuenow={Math.min(limit, used)} aria-valuetext={figures}>
          <i style={{ width: share(used - reserved) }} />
          <i class="reserved" style={{ width: share(reserved) }} />
        </div>
      )}
    </li>
  );
}

/** The limit that is nearest to being used up, in a few words; for tables. */
export function Tightest({ limits, use }: { limits: Limits; use: Use | undefined }) {
  const set = ROWS.filter((row) => limits[row.limit] !== null);
  if (!set.length) return <span class="muted">no limits</span>;
  const shares = set.map((row) => ({ row, share: use ? sumOf(use[row.limit]) / Math.max(limits[row.limit]!, 1e-9) : 0 }));
  const { row, share } = shares.reduce((most, one) => (one.share > most.share ? one : most));
  return (
    <span data-full={share >= 1}>
      {Math.round(100 * share)}% of {row.format(limits[row.limit]!)} {row.short}
    </span>
  );
}
