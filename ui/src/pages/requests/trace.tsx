/** The trace of one request: one lane per stage, spans over time. */
import { useMemo, useState } from "preact/hooks";
import type { RequestDetail, Span } from "../../lib/api";
import { count, duration } from "../../lib/format";
import { Viewport, useViewportPointer } from "../../lib/viewport";
import { STAGES, STAGE_COLOURS } from "../../lib/labels";
import { Button } from "../../parts/basics";
import { font, ink, ticks, useCanvas } from "../../parts/canvas";
import { Tip, TipRows } from "../../parts/tip";

const LANE = 24;
const TOP = 24;
const LEFT = 132;
const ORDER = Object.keys(STAGES);

interface Lane {
  name: string;
  stage: string;
  spans: Span[];
}

function lanesOf({ spans, sequences }: RequestDetail): Lane[] {
  const found = new Map<string, Lane>();
  for (const span of spans) {
    const many = sequences.length > 1 && span.seq !== null;
    const key = many ? `${span.stage} ${span.seq}` : span.stage;
    const name = `${STAGES[span.stage] ?? span.stage}${many ? ` · ${span.seq}` : ""}`;
    const lane = found.get(key) ?? { name, stage: span.stage, spans: [] };
    lane.spans.push(span);
    found.set(key, lane);
  }
  const lanes = [...found.values()].sort((a, b) => ORDER.indexOf(a.stage) - ORDER.indexOf(b.stage));
  for (const lane of lanes) lane.spans.sort((a, b) => a.start - b.start);
  return lanes.slice(0, 60);
}

export function Trace({ request }: { request: RequestDetail }) {
  const lanes = useMemo(() => lanesOf(request), [request]);
  const end = Math.max(request.end ?? 0, ...request.spans.map((span) => span.end), request.t + 1);
  const view = useMemo(() => new Viewport(0, end - request.t, 5), [request.number]);
  if (view.max !== end - request.t) {
    const whole = view.span >= view.max - view.min;
    view.max = end - request.t;
    if (whole) view.fit();
  }
  const [hover, setHover] = useState<{ x: number; y: number; span: Span } | null>(null);
  const { ref, redraw } = useCanvas((context, width, height) => {
    const scale = (width - LEFT) / view.span;
    const x = (t: number): number => LEFT + (t - request.t - view.from) * scale;
    context.font = font(13);
    context.textBaseline = "middle";
    for (const tick of ticks(view.from, view.to, (width - LEFT) / 75)) {
      const at = Math.round(x(tick + request.t)) + 0.5;
      context.fillStyle = ink("line");
      context.fillRect(at, TOP - 6, 1, height);
      context.fillStyle = ink("text-3");
      context.textAlign = at > width - 50 ? "right" : "center";
      context.fillText(duration(tick), Math.min(at, width - 2), 10);
    }
    context.textAlign = "left";
    lanes.forEach((lane, place) => {
      const top = TOP + place * LANE;
      context.fillStyle = ink("text-2");
      context.fillText(lane.name, 0, top + LANE / 2, LEFT - 10);
      context.fillStyle = ink(`c-${STAGE_COLOURS[lane.stage] ?? "output"}`);
      context.save();
      context.beginPath();
      context.rect(LEFT, top, width - LEFT, LANE);
      context.clip();
      let drawnTo = -1;
      for (const span of lane.spans) {
        const from = x(span.start);
        const to = Math.max(x(span.end), from + 1);
        if (to < LEFT || from > width || to <= drawnTo) continue;
        const gap = to - from > 4 ? 0.5 : 0; // a hairline between neighbours
        context.fillRect(from, top + 5, to - from - gap, LANE - 10);
        drawnTo = to;
      }
      context.restore();
    });
  });
  useViewportPointer(ref, view, LEFT, redraw);
  redraw();
  const find = (event: PointerEvent): void => {
    const canvas = ref.current;
    const lane = lanes[Math.floor((event.offsetY - TOP) / LANE)];
    if (!canvas || !lane || event.offsetX < LEFT) return setHover(null);
    const unit = view.span / (canvas.clientWidth - LEFT);
    const t = request.t + view.from + (event.offsetX - LEFT) * unit;
    const span = lane.spans.find((one) => one.start - 2 * unit <= t && t <= one.end + 2 * unit);
    setHover(span ? { x: event.clientX, y: event.clientY, span } : null);
  };
  const zoom = (factor: number): void => {
    view.zoom(factor);
    redraw();
  };
  return (
    <div class="trace">
      <canvas
        ref={ref}
        style={{ height: `${TOP + lanes.length * LANE + 4}px` }}
        role="img"
        aria-label={`Trace of ${lanes.length} stages over ${duration(end - request.t)}; the table below has the figures.`}
        onPointerMove={find}
        onPointerLeave={() => setHover(null)}
      />
      <div class="row end zoom">
        <span class="small muted wide-only">Drag to pan, Ctrl + wheel to zoom</span>
        <Button icon="minus" kind="quiet" label="Zoom out" onClick={() => zoom(2)} />
        <Button icon="plus" kind="quiet" label="Zoom in" onClick={() => zoom(0.5)} />
        <Button kind="quiet" onClick={() => (view.fit(), redraw())}>
          Fit
        </Button>
      </div>
      {hover && (
        <Tip x={hover.x} y={hover.y}>
          <TipRows
            title={STAGES[hover.span.stage] ?? hover.span.stage}
            rows={[
              ["duration", duration(hover.span.end - hover.span.start)],
              ["start", duration(hover.span.start - request.t)],
              ...(hover.span.tokens !== null ? [["tokens", count(hover.span.tokens)] as const] : []),
              ...(hover.span.step !== null ? [["step", `#${hover.span.step}`] as const] : []),
              ...(hover.span.count > 1 ? [["merged spans", `${hover.span.count}`] as const] : []),
            ]}
          />
        </Tip>
      )}
    </div>
  );
}
