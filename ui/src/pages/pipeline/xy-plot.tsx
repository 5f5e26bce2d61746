/** A small plot of y over x, on linear or logarithmic axes. The table below it, or beside it, has the figures. */
import { Legend } from "../../parts/basics";
import { font, ink, ticks, useCanvas } from "../../parts/canvas";

export interface Series {
  label: string;
  colour: string; // as in the legend: prefill, decode, …
  points: (readonly [x: number, y: number])[];
  dots?: boolean; // points only
}

const [LEFT, RIGHT, TOP, BOTTOM] = [64, 12, 10, 34];

export function XyPlot({
  label,
  series,
  xLabel,
  x = String,
  y = String,
  log = false,
}: {
  label: string;
  series: Series[];
  xLabel: string;
  x?: (value: number) => string;
  y?: (value: number) => string;
  log?: boolean;
}) {
  const points = series.flatMap((one) => one.points).filter(([, value]) => Number.isFinite(value) && (!log || value > 0));
  const to = (value: number): number => (log ? Math.log10(value) : value);
  const { ref, redraw } = useCanvas((context, width, height) => {
    if (!points.length) return;
    const [xs, ys] = [points.map((point) => to(point[0])), points.map((point) => to(point[1]))];
    const [x0, x1] = [log ? Math.min(...xs) : 0, Math.max(...xs) || 1];
    const [y0, y1] = [log ? Math.min(...ys) : 0, (Math.max(...ys) || 1) * (log ? 1 : 1.05)];
    const px = (value: number): number => LEFT + ((to(value) - x0) / Math.max(1e-9, x1 - x0)) * (width - LEFT - RIGHT);
    const py = (value: number): number => height - BOTTOM - ((to(value) - y0) / Math.max(1e-9, y1 - y0)) * (height - TOP - BOTTOM);
    context.font = font(12);
    context.textBaseline = "middle";
    const marks = (from: number, end: number, wanted: number): number[] =>
      log ? Array.from({ length: Math.floor(end) - Math.ceil(from) + 1 }, (_, at) => 10 ** (Math.ceil(from) + at)) : ticks(from, end, wanted);
    for (const value of marks(y0, y1, 4)) {
      context.fillStyle = ink("line");
      context.fillRect(LEFT, Math.round(py(value)), width - LEFT - RIGHT, 1);
      context.fillStyle = ink("text-2");
      context.textAlign = "right";
      context.fillText(y(value), LEFT - 6, py(value), LEFT - 8);
    }
    context.textAlign = "center";
    for (const value of marks(x0, x1, width / 110)) context.fillText(x(value), Math.min(px(value), width - 20), height - BOTTOM + 11);
    context.fillText(xLabel, LEFT + (width - LEFT - RIGHT) / 2, height - 7);
    for (const { points: own, colour, dots } of series) {
      context.strokeStyle = context.fillStyle = ink(`c-${colour}`);
      context.lineWidth = 2;
      context.beginPath();
      if (!dots) own.forEach((point, at) => (at ? context.lineTo(px(point[0]), py(point[1])) : context.moveTo(px(point[0]), py(point[1]))));
      context.stroke();
      if (dots || own.length < 12)
        for (const point of own) {
          context.beginPath();
          context.arc(px(point[0]), py(point[1]), 4, 0, 7);
          context.fill();
        }
    }
  });
  redraw();
  return (
    <figure class="xy-plot">
      <canvas ref={ref} role="img" aria-label={label} />
      <Legend entries={series.map((one) => [one.colour, one.label])} />
    </figure>
  );
}
