/** A canvas that fills its width, is sharp on every screen, and draws at most once per frame. */
import { effect } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { perFrame } from "../lib/frames";
import { colour, theme } from "../lib/theme";

export type Draw = (context: CanvasRenderingContext2D, width: number, height: number) => void;

export interface CanvasHandle {
  ref: { current: HTMLCanvasElement | null };
  redraw: () => void;
}

/** `draw` sees the latest state each time; call `redraw` when that has changed. */
export function useCanvas(draw: Draw): CanvasHandle {
  const ref = useRef<HTMLCanvasElement>(null);
  const latest = useRef(draw);
  latest.current = draw;
  const redraw = useMemo(
    () =>
      perFrame(() => {
        const canvas = ref.current;
        const context = canvas?.getContext("2d");
        if (!canvas || !context) return;
        const { clientWidth: width, clientHeight: height } = canvas;
        if (!width || !height) return;
        const ratio = devicePixelRatio || 1;
        const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
        if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
        context.setTransform(ratio, 0, 0, ratio, 0, 0);
        context.clearRect(0, 0, width, height);
        latest.current(context, width, height);
      }),
    [],
  );
  useEffect(() => {
    const canvas = ref.current;
    if (!canvas) return;
    const sized = new ResizeObserver(redraw);
    sized.observe(canvas);
    const stop = effect(() => {
      theme.value;
      palette.clear();
      redraw();
    });
    return () => {
      sized.disconnect();
      stop();
      redraw.cancel();
    };
  }, []);
  return { ref, redraw };
}

const palette = new Map<string, string>();

/** A colour of the design system; read once per theme. */
export function ink(name: string): string {
  let found = palette.get(name);
  if (!found) palette.set(name, (found = colour(name)));
  return found;
}

export const font = (size: number, weight = 400): string => `${weight} ${size}px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif`;

/** About `wanted` round axis values between two bounds. */
export function ticks(from: number, to: number, wanted: number): number[] {
  const raw = (to - from) / Math.max(1, wanted);
  if (!(raw > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= raw) ?? raw;
  const found: number[] = [];
  for (let at = Math.ceil(from / step) * step; at <= to + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}
