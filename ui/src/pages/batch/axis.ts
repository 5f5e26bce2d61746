/** Where the timeline draws steps: in columns of one width, or by the time they ran. */
import { duration } from "../../lib/format";
import type { Viewport } from "../../lib/viewport";
import { ticks } from "../../parts/canvas";
import type { Lane, Timeline } from "./model";

const TICK_PX = 120;

export interface Axis {
  /** Pixels at which a step begins. */
  x(step: number): number;
  /** Pixels at which it ends; by time there may be idle time before the next. */
  end(step: number): number;
  /** Pixels at which a sequence began to wait. */
  queued(lane: Lane): number;
  /** The step at a place, with the part of it that lies to the left. */
  stepAt(x: number): number;
  ticks(): { x: number; text: string }[];
}

export function stepAxis(view: Viewport, model: Timeline, left: number, width: number): Axis {
  const scale = (width - left) / view.span;
  const x = (step: number): number => left + (step - view.from) * scale;
  return {
    x,
    end: (step) => x(step + model.stride),
    queued: (lane) => x(lane.first),
    stepAt: (at) => view.from + Math.max(0, at - left) / scale,
    ticks: () =>
      ticks(view.from, view.to, (width - left) / TICK_PX)
        .filter((tick) => tick % 1 === 0)
        .map((tick) => ({ x: x(tick), text: `#${tick}` })),
  };
}

/** The same steps are in view; instants are microseconds. */
export function timeAxis(view: Viewport, model: Timeline, left: number, width: number): Axis {
  const begin = model.timeOf(view.from);
  const span = Math.max(1, model.timeOf(view.to) - begin);
  const scale = (width - left) / span;
  const place = (t: number): number => left + (t - begin) * scale;
  const stepAt = (at: number): number => {
    const t = begin + Math.max(0, at - left) / scale;
    const step = model.stepAt(t);
    const from = model.timeOf(step);
    const next = model.timeOf(step + model.stride);
    return step + Math.min(0.999, Math.max(0, (t - from) / Math.max(1, next - from))) * model.stride;
  };
  return {
    x: (step) => place(model.timeOf(step)),
    end: (step) => {
      const column = model.columnAt(step);
      return place(column ? column.start + column.us : model.timeOf(step + model.stride));
    },
    queued: (lane) => place(lane.about?.queued_at ?? model.timeOf(lane.first)),
    stepAt,
    ticks: () => ticks(0, span, (width - left) / TICK_PX).map((tick) => ({ x: left + tick * scale, text: tick ? `+${duration(tick)}` : "0" })),
  };
}
