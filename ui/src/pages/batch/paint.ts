/** Draws the visible part of the timeline: batch size and step time above, one row per sequence below. */
import { duration } from "../../lib/format";
import type { Viewport } from "../../lib/viewport";
import { font, ink } from "../../parts/canvas";
import type { Axis } from "./axis";
import { DECODE, type Lane, type Timeline } from "./model";

const ROWS = [20, 15]; // pixels, the first that fits; labels need 15
export const LEFT = 78;
const STRIP = 46;
const GAP = 10;
const AXIS = 22;
export const TOP = AXIS + 2 * (STRIP + GAP) + 4;

/** The largest row height at which all lanes fit, else the smallest readable one. */
export function rowHeight(lanes: number, room: number): number {
  return ROWS.find((high) => lanes * high <= room) ?? ROWS.at(-1)!;
}

/** The same for the same name, in both themes. */
export function adapterColour(name: string): string {
  let hash = 7;
  for (const character of name) hash = (hash * 31 + character.codePointAt(0)!) % 3600;
  return `hsl(${(hash * 137) % 360} 60% 50%)`;
}

export interface Pointed {
  step: number;
  lane: Lane | null;
}

export function paint(
  context: CanvasRenderingContext2D,
  width: number,
  height: number,
  model: Timeline,
  view: Viewport,
  axis: Axis,
  lanes: Lane[],
  scrollTop: number,
  high: number,
  pointed: Pointed | null,
): void {
  context.textBaseline = "middle";
  grid(context, width, height, axis);
  context.save();
  context.beginPath();
  context.rect(LEFT, 0, width - LEFT, height);
  context.clip();
  strips(context, model, view, axis);
  context.restore();
  labels(context, model, view);
  context.save();
  context.beginPath();
  context.rect(0, TOP, width, height - TOP);
  context.clip();
  const begin = Math.max(0, Math.floor(scrollTop / high));
  const end = Math.min(lanes.length, Math.ceil((scrollTop + height - TOP) / high));
  for (let place = begin; place < end; place++) {
    const lane = lanes[place]!;
    row(context, width, TOP + place * high - scrollTop, high, lane, model, view, axis, pointed?.lane === lane);
  }
  context.restore();
  if (pointed) {
    context.fillStyle = ink("text");
    context.globalAlpha = 0.25;
    const at = axis.x(Math.floor(pointed.step));
    context.fillRect(at, AXIS, Math.max(1, axis.end(Math.floor(pointed.step)) - at), height);
    context.globalAlpha = 1;
  }
}

function grid(context: CanvasRenderingContext2D, width: number, height: number, axis: Axis): void {
  context.font = font(13);
  for (const { x, text } of axis.ticks()) {
    context.fillStyle = ink("line");
    context.fillRect(Math.round(x), AXIS - 4, 1, height);
    context.fillStyle = ink("text-3");
    context.textAlign = x > width - 40 ? "right" : "left";
    context.fillText(text, x, 9);
  }
  context.textAlign = "left";
}

/** Scales: the largest batch in view, and the longest step without outliers, which are clipped. */
function peaks(model: Timeline, view: Viewport): { batch: number; us: number } {
  let batch = 1;
  const times: number[] = [];
  for (const column of model.columns)
    if (column.number + model.stride > view.from && column.number < view.to) {
      batch = Math.max(batch, column.rows + column.waiting);
      times.push(column.us / model.stride);
    }
  times.sort((a, b) => a - b);
  const most = times.at(-1) ?? 1;
  const usual = (times[Math.floor(times.length * 0.95)] ?? most) * 1.25;
  return { batch, us: Math.max(1, most > 2 * usual ? usual : most) };
}

function strips(context: CanvasRenderingContext2D, model: Timeline, view: Viewport, axis: Axis): void {
  const { batch, us } = peaks(model, view);
  for (const column of model.columns) {
    if (column.number + model.stride <= view.from || column.number >= view.to) continue;
    const at = axis.x(column.number);
    const room = axis.end(column.number) - at;
    const wide = Math.max(room - (room > 4 ? 1 : 0), 0.75);
    const base = AXIS + STRIP;
    const high = (column.rows / batch) * STRIP;
    context.fillStyle = ink("c-decode");
    context.fillRect(at, base - high, wide, high);
    if (column.waiting) {
      const more = (column.waiting / batch) * STRIP;
      context.fillStyle = ink("c-wait");
      context.fillRect(at, base - high - more, wide, more);
    }
    const time = Math.min(1, column.us / model.stride / us) * STRIP;
    context.fillStyle = ink("accent");
    context.fillRect(at, base + GAP + STRIP - time, wide, time);
    if (column.us / model.stride > us) {
      context.fillStyle = ink("text"); // clipped
      context.fillRect(at, base + GAP, wide, 3);
    }
  }
}

function labels(context: CanvasRenderingContext2D, model: Timeline, view: Viewport): void {
  const { batch, us } = peaks(model, view);
  context.font = font(13);
  context.textAlign = "left";
  context.fillStyle = ink("text-2");
  context.fillText("Batch", 0, AXIS + 8);
  context.fillText("Step time", 0, AXIS + STRIP + GAP + 8);
  context.fillStyle = ink("text-3");
  context.fillText(`to ${batch}`, 0, AXIS + 25);
  context.fillText(`to ${duration(us)}`, 0, AXIS + STRIP + GAP + 25);
}

function row(
  context: CanvasRenderingContext2D,
  width: number,
  top: number,
  tall: number,
  lane: Lane,
  model: Timeline,
  view: Viewport,
  axis: Axis,
  on: boolean,
): void {
  if (on) {
    context.fillStyle = ink("surface-2");
    context.fillRect(0, top, width, tall);
  }
  context.fillStyle = ink(lane.about ? "accent" : "text-3"); // like a link: a click opens the request
  context.font = font(13, on ? 600 : 400);
  context.textAlign = "left";
  context.fillText(lane.about ? `#${lane.about.request}` : `seq ${lane.seq}`, 0, top + tall / 2, LEFT - 8);
  if (lane.about?.adapter) {
    context.fillStyle = adapterColour(lane.about.adapter);
    context.fillRect(LEFT - 8, top + 2, 4, tall - 4);
  }
  context.save();
  context.beginPath();
  context.rect(LEFT, top, width - LEFT, tall);
  context.clip();
  const bar = (from: number, to: number, colour: string, high: number): void => {
    const left = Math.max(LEFT, from);
    const right = Math.min(width, to);
    if (right <= left) return;
    context.fillStyle = ink(colour);
    context.fillRect(left, top + (tall - high) / 2, Math.max(right - left, 0.75), high);
  };
  const own = lane.steps[0];
  const admitted = own ?? model.end;
  if (lane.first < admitted) bar(axis.queued(lane), axis.x(admitted), "c-wait", tall / 4.5);
  for (const { step } of lane.preempted) {
    const next = lane.steps.find((other) => other > step) ?? (lane.about?.finished_at == null ? model.end : step + 1);
    bar(axis.x(step), axis.x(next), "c-preempted", tall / 4.5);
  }
  cells(lane, model, view, axis, tall, bar);
  context.restore();
}

/** Merges adjacent steps of one kind where single steps are too narrow to draw. */
function cells(
  lane: Lane,
  model: Timeline,
  view: Viewport,
  axis: Axis,
  tall: number,
  bar: (from: number, to: number, colour: string, high: number) => void,
): void {
  const { stride } = model;
  const { steps, kinds } = lane;
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle]! + stride <= view.from) low = middle + 1;
    else high = middle;
  }
  for (let at = low; at < steps.length && steps[at]! < view.to; ) {
    const first = steps[at]!;
    const kind = kinds[at]!;
    const left = axis.x(first);
    const apart = axis.end(first) - left >= 4;
    let last = first;
    at += 1;
    while (!apart && at < steps.length && kinds[at] === kind && steps[at]! <= last + stride) {
      last = steps[at]!;
      at += 1;
    }
    bar(left, axis.end(last) - (apart ? 1 : 0), kind === DECODE ? "c-decode" : "c-prefill", kind === DECODE ? tall * 0.56 : tall * 0.74);
  }
}
