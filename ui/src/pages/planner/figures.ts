import { count, short } from "../../lib/format";

export const rate = (value: number | null | undefined): string => (value == null ? "–" : `${value >= 1e3 && value < 1e4 ? count(value) : short(value)} tok/s`);
export const money = (value: number | null | undefined): string => (value == null ? "–" : value >= 0.01 || value === 0 ? value.toFixed(2) : value.toPrecision(2));
