/** Requests and tokens that move along the pipes of the diagram: at most a few dozen dots, drawn once per frame. */
import { ink } from "../../parts/canvas";

export type Point = readonly [x: number, y: number];

interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

interface Dot {
  way: Way;
  at: number; // pixels from its beginning
}

export interface Way {
  points: Point[];
  length: number;
  colour: string;
  radius: number;
}

const SPEED = 260; // pixels per second
const MOST_PER_S = 14; // dots of one way: more would be a line
const MOST_DOTS = 90;

/** The corners of the pipe between two boxes: straight in a row, else down into the gap, across, and down. */
export function pipe(from: Box, to: Box): Point[] {
  const [x0, y0] = [from.left + from.width / 2, from.top + from.height / 2];
  const [x1, y1] = [to.left + to.width / 2, to.top + to.height / 2];
  if (Math.abs(y0 - y1) < from.height / 2) return [[x0, y0], [x1, y1]];
  const below = y1 > y0 ? from.top + from.height + (to.top - from.top - from.height) / 2 : from.top + from.height + 10;
  return [[x0, y0], [x0, below], [x1, below], [x1, y1]];
}

/** Beneath its row back to an earlier box. */
export function loop(from: Box, to: Box): Point[] {
  const [x0, x1] = [from.left + from.width / 2, to.left + to.width / 2];
  const below = Math.max(from.top + from.height, to.top + to.height) + 9;
  return [[x0, from.top + from.height / 2], [x0, below], [x1, below], [x1, to.top + to.height / 2]];
}

export function way(points: Point[], colour: string, radius: number): Way {
  let length = 0;
  for (let at = 1; at < points.length; at += 1) length += distance(points[at - 1]!, points[at]!);
  return { points, length, colour, radius };
}

const distance = ([x0, y0]: Point, [x1, y1]: Point): number => Math.abs(x1 - x0) + Math.abs(y1 - y0);

function position({ points }: Way, at: number): Point {
  for (let place = 1; place < points.length; place += 1) {
    const [from, to] = [points[place - 1]!, points[place]!];
    const length = distance(from, to);
    if (at <= length || place === points.length - 1) {
      const share = length ? Math.min(1, at / length) : 0;
      return [from[0] + (to[0] - from[0]) * share, from[1] + (to[1] - from[1]) * share];
    }
    at -= length;
  }
  return points[0] ?? [0, 0];
}

export class Flow {
  private dots: Dot[] = [];
  private owed = new Map<string, number>();
  ways: Record<string, Way> = {};
  rates: Record<string, number> = {}; // dots per second, by way

  get moving(): boolean {
    return this.dots.length > 0 || Object.values(this.rates).some((rate) => rate > 0);
  }

  advance(seconds: number): void {
    for (const dot of this.dots) dot.at += SPEED * seconds;
    this.dots = this.dots.filter(({ way, at }) => at < way.length);
    for (const [name, rate] of Object.entries(this.rates)) {
      const way = this.ways[name];
      if (!way) continue;
      let due = (this.owed.get(name) ?? 0) + Math.min(rate, MOST_PER_S) * seconds;
      for (; due >= 1; due -= 1) if (this.dots.length < MOST_DOTS) this.dots.push({ way, at: 0 });
      this.owed.set(name, due);
    }
  }

  draw(context: CanvasRenderingContext2D): void {
    for (const { way, at } of this.dots) {
      const [x, y] = position(way, at);
      context.fillStyle = ink(way.colour);
      context.beginPath();
      context.arc(x, y, way.radius, 0, 7);
      context.fill();
    }
  }

  /** The layout has changed: dots would lie beside their pipes. */
  clear(): void {
    this.dots = [];
  }
}

export function drawPipes(context: CanvasRenderingContext2D, pipes: Point[][]): void {
  context.strokeStyle = ink("line-strong");
  context.lineWidth = 2;
  context.lineJoin = "round";
  for (const points of pipes) {
    context.beginPath();
    points.forEach(([x, y], place) => (place ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.stroke();
  }
}
