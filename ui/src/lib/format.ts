/** Number and time formats. */

export function duration(us: number | null | undefined): string {
  if (us == null || !Number.isFinite(us)) return "–";
  const value = Math.abs(us);
  if (value === 0) return "0 s";
  if (value < 1000) return `${Number.isInteger(us) ? us : us.toFixed(value < 10 ? 1 : 0)} µs`;
  if (value < 1e6) return `${(us / 1e3).toFixed(value < 1e4 ? 2 : value < 1e5 ? 1 : 0)} ms`;
  if (value < 1e8) return `${(us / 1e6).toFixed(value < 1e7 ? 2 : 1)} s`;
  const minutes = Math.floor(us / 6e7);
  return minutes < 60
    ? `${minutes} min${us % 6e7 < 5e5 ? "" : ` ${Math.round((us % 6e7) / 1e6)} s`}`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const ms = (value: number | null | undefined): string => duration(value == null ? value : value * 1e3);
export const seconds = (value: number | null | undefined): string => duration(value == null ? value : value * 1e6);

export function bytes(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${units[unit]}`;
}

export function count(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return "–";
  return Math.round(value).toLocaleString("en-US");
}

/** Three significant digits, with an SI suffix from 10,000 on. */
export function short(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  for (const [limit, suffix] of [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e4, "k"],
  ] as const)
    if (size >= limit) return `${figures(value / (limit === 1e4 ? 1e3 : limit))}${suffix}`;
  return figures(value);
}

function figures(value: number): string {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return String(Math.round(value));
  if (size >= 10) return value.toFixed(1);
  return size >= 0.1 || value === 0 ? value.toFixed(2) : value.toPrecision(2);
}

export function percent(share: number | null | undefined, digits = 1): string {
  if (share == null || !Number.isFinite(share)) return "–";
  if (share > 0 && share < 0.0005) return "<0.1%";
  return `${(share * 100).toFixed(share >= 0.9995 || share === 0 ? 0 : digits)}%`;
}

export function clock(unixSeconds: number): string {
  return new Date(unixSeconds * 1000).toLocaleTimeString("en-GB", { hour12: false });
}

export function ago(unixSeconds: number, now = Date.now() / 1000): string {
  const past = Math.max(0, now - unixSeconds);
  if (past < 60) return `${Math.floor(past)} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  return past < 172_800 ? `${Math.floor(past / 3600)} h ago` : `${Math.floor(past / 86_400)} days ago`;
}

/** A token's text with whitespace and control characters made visible. */
export function visible(text: string): string {
  if (text === "") return "∅";
  return text
    .replaceAll(" ", "·")
    .replaceAll("\n", "⏎")
    .replaceAll("\t", "⇥")
    .replace(/[\p{C}\p{Z}]/gu, (one) => `⟨${one.codePointAt(0)?.toString(16)}⟩`);
}

/** Dollars: cents from a dollar on, below that as many digits as it takes. */
export function usd(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const sign = value < 0 ? "−" : "";
  if (size === 0 || size >= 1) return `${sign}$${size.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  if (size >= 0.01) return `${sign}$${size.toFixed(4).replace(/00$/, "")}`;
  return `${sign}$${size < 1e-6 ? size.toPrecision(1) : Number(size.toPrecision(2)).toFixed(6).replace(/0+$/, "")}`;
}

/** The day, in local time. */
export function day(unixSeconds: number): string {
  return new Date(unixSeconds * 1000).toLocaleDateString("en-CA"); // 2026-01-31
}

export function dateTime(unixSeconds: number): string {
  return `${day(unixSeconds)} ${clock(unixSeconds)}`;
}
