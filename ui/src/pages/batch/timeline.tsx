import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { StepWindow } from "../../lib/api";
import { count, duration } from "../../lib/format";
import { fetchJson, errorMessage } from "../../lib/http";
import { ofSource } from "../../lib/source";
import { onSteps } from "../../lib/live";
import { go } from "../../lib/router";
import { useShortcuts } from "../../lib/shortcuts";
import { Viewport, useViewportPointer } from "../../lib/viewport";
import { WAITS } from "../../lib/labels";
import { Button, Card, Empty, Legend, Problem } from "../../parts/basics";
import { useCanvas } from "../../parts/canvas";
import { Tip, TipRows } from "../../parts/tip";
import { stepAxis, timeAxis } from "./axis";
import { DECODE, type Lane, Timeline } from "./model";
import { Overview } from "./overview";
import { adapterColour, LEFT, paint, type Pointed, rowHeight, TOP } from "./paint";

const WIDEST = 2000; // steps in view; the overview below shows all recorded steps
const FIRST_SPAN = 200;

export function TimelineCard() {
  const model = useRef(new Timeline());
  const view = useMemo(() => new Viewport(0, 1, 8), []);
  const lanes = useRef<Lane[]>([]);
  const row = useRef(18);
  const scroller = useRef<HTMLDivElement>(null);
  const sizer = useRef<HTMLDivElement>(null);
  const pinned = useRef(true);
  const [follow, setFollow] = useState(true);
  const following = useRef(true);
  following.current = follow;
  const [kept, setKept] = useState({ first: 0, last: 0 });
  const [problem, setProblem] = useState("");
  const [empty, setEmpty] = useState(true);
  const [hover, setHover] = useState<{ x: number; y: number; at: Pointed } | null>(null);
  const wanted = useRef(0);
  const [byTime, setByTime] = useState(false);
  const [adapters, setAdapters] = useState(""); // LoRA adapters of rows in view, one per line
  const axis = (width: number) => (byTime ? timeAxis : stepAxis)(view, model.current, LEFT, width);

  const { ref, redraw } = useCanvas((context, width, height) => {
    lanes.current = model.current.visible(view.from, view.to);
    const box = scroller.current;
    row.current = rowHeight(lanes.current.length, height - TOP - 8);
    const whole = TOP + lanes.current.length * row.current + 8;
    if (sizer.current) sizer.current.style.height = `${whole}px`;
    if (box && following.current && pinned.current) box.scrollTop = whole;
    setAdapters([...new Set(lanes.current.flatMap((lane) => lane.about?.adapter ?? []))].sort().join("\n"));
    paint(context, width, height, model.current, view, axis(width), lanes.current, box?.scrollTop ?? 0, row.current, hover?.at ?? null);
  });

  const bounds = (): void => {
    const { first, end } = model.current;
    view.min = follow ? Math.min(first, view.min || first) : view.min;
    view.max = Math.max(end, view.min + view.least);
  };

  const loadLatest = async (): Promise<void> => {
    try {
      const window = await fetchJson<StepWindow>(ofSource(`/observe/steps?last=${Math.max(FIRST_SPAN, Math.ceil(view.span))}&columns=2000`));
      model.current = Timeline.of(window);
      setEmpty(model.current.columns.length === 0);
      setKept({ first: window.first, last: window.last });
      Object.assign(view, { min: window.first, max: Math.max(model.current.end, window.first + view.least) });
      const span = Math.min(WIDEST, Math.max(FIRST_SPAN, view.span));
      view.show(view.max - span, view.max);
      setProblem("");
      redraw();
    } catch (error) {
      setProblem(errorMessage(error));
    }
  };

  useEffect(() => {
    void loadLatest();
    return onSteps((window) => {
      setKept((before) => (before.last === window.last ? before : { first: window.first, last: window.last }));
      if (!following.current || !window.steps.number.length) return;
      setEmpty(false);
      // Missed steps: reload, so that the timeline has no gap.
      if (model.current.stride !== 1 || (model.current.columns.length && window.steps.number[0]! > model.current.end)) {
        void loadLatest();
        return;
      }
      model.current.append(window);
      model.current.trim(WIDEST);
      Object.assign(view, { min: Math.max(window.first, 0), max: model.current.end });
      view.show(view.max - view.span, view.max);
      redraw();
    });
  }, []);

  /** After a pan or zoom: fetch the steps that are missing. */
  const moved = (): void => {
    if (view.span > WIDEST) view.show(view.to - WIDEST, view.to);
    if (follow && view.to < model.current.end - 1) setFollow(false);
    redraw();
    const { first, end, stride } = model.current;
    const room = (ref.current?.clientWidth ?? 800) - LEFT;
    const fine = view.span <= room * 1.2;
    if (view.from >= first && view.to <= end && (stride === 1 || !fine)) return;
    clearTimeout(wanted.current);
    wanted.current = window.setTimeout(() => void fetchView(), 90);
  };
  const fetchView = async (): Promise<void> => {
    const margin = view.span / 4;
    const from = Math.max(kept.first, Math.floor(view.from - margin));
    const to = Math.min(kept.last, Math.ceil(view.to + margin));
    if (from > to) return; // beyond the recorded steps
    const columns = Math.max(200, Math.ceil(((ref.current?.clientWidth ?? 800) - LEFT) * 1.5)); // 1.5: the margins
    try {
      const found = await fetchJson<StepWindow>(ofSource(`/observe/steps?from=${from}&to=${to}&columns=${columns}`));
      if (following.current) return;
      model.current = Timeline.of(found);
      redraw();
    } catch (error) {
      setProblem(errorMessage(error));
    }
  };
  useViewportPointer(ref, view, LEFT, moved);
  const zoom = (factor: number): void => {
    view.zoom(factor, follow ? 1 : 0.5);
    moved();
  };
  const pan = (share: number): void => {
    view.pan(view.span * share);
    moved();
  };
  const toggle = (): void => {
    setFollow(!follow);
    if (!follow) void loadLatest();
  };
  useShortcuts("Batch", [
    { keys: " ", label: "Pause or resume", run: toggle },
    { keys: "+", label: "Zoom in", run: () => zoom(0.5) },
    { keys: "-", label: "Zoom out", run: () => zoom(2) },
    { keys: "ArrowLeft", label: "Earlier steps", run: () => pan(-0.25) },
    { keys: "ArrowRight", label: "Later steps", run: () => pan(0.25) },
  ]);
  const point = (event: PointerEvent): void => {
    const canvas = ref.current;
    if (!canvas) return;
    const step = axis(canvas.clientWidth).stepAt(event.offsetX);
    const place = Math.floor((event.offsetY - TOP + (scroller.current?.scrollTop ?? 0)) / row.current);
    const lane = event.offsetY > TOP ? (lanes.current[place] ?? null) : null;
    if (event.offsetX < LEFT && !lane) return setHover(null);
    setHover({ x: event.clientX, y: event.clientY, at: { step, lane } });
  };
  useEffect(redraw, [hover, follow, byTime]);
  bounds();
  return (
    <Card
      title="Timeline"
      aside={
        <>
          <Button kind="quiet" aria-pressed={byTime} onClick={() => setByTime(!byTime)}>
            By time
          </Button>
          <Button icon="minus" kind="quiet" label="Zoom out" onClick={() => zoom(2)} />
          <Button icon="plus" kind="quiet" label="Zoom in" onClick={() => zoom(0.5)} />
          <Button icon={follow ? "pause" : "play"} aria-pressed={!follow} onClick={toggle}>
            {follow ? "Pause" : "Resume"}
          </Button>
        </>
      }
    >
      {problem && <Problem message={problem} onRetry={() => void loadLatest()} />}
      {empty && !problem && (
        <Empty icon="batch" title="No steps yet">
          Each engine step becomes a column. Send a request to see steps.
        </Empty>
      )}
      <div class="timeline" data-empty={empty}>
        <div
          class="timeline-scroll"
          ref={scroller}
          tabIndex={0}
          role="region"
          aria-label="One row per sequence, one column per step"
          onScroll={({ currentTarget: box }) => {
            pinned.current = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
            redraw();
          }}
        >
          <div ref={sizer}>
            <canvas
              ref={ref}
              role="img"
              data-clickable={hover?.at.lane?.about !== undefined}
              aria-label={byTime ? "Timeline of the engine's steps, by time" : "Timeline of the engine's steps"}
              onPointerMove={point}
              onPointerLeave={() => setHover(null)}
              onClick={() => hover?.at.lane?.about && hover.at.lane && go("requests", String(hover.at.lane.about.request))}
            />
          </div>
        </div>
        <Legend
          entries={[
            ["prefill", "Prefill"],
            ["decode", "Decode"],
            ["wait", "Waiting"],
            ["preempted", "Preempted"],
            ["accent", "Step time"],
          ]}
        />
        {adapters && <AdapterLegend names={adapters.split("\n")} />}
        <Overview
          kept={kept}
          view={view}
          redrawKey={hover}
          onMove={(at) => {
            setFollow(false);
            following.current = false;
            view.min = kept.first;
            view.max = Math.max(kept.last + 1, view.max);
            view.show(at - view.span / 2, at + view.span / 2);
            moved();
          }}
        />
      </div>
      {hover && <Pointer hover={hover} model={model.current} />}
    </Card>
  );
}

const NAMED = 12; // adapters in the legend

/** Which colour beside a row stands for which LoRA adapter; rows without one have the base model alone. */
function AdapterLegend({ names }: { names: string[] }) {
  return (
    <ul class="legend" aria-label="Adapters of rows">
      {names.slice(0, NAMED).map((name) => (
        <li key={name}>
          <i style={{ background: adapterColour(name) }} />
          {name}
        </li>
      ))}
      {names.length > NAMED && <li>and {count(names.length - NAMED)} more</li>}
    </ul>
  );
}

function Pointer({ hover: { x, y, at }, model }: { hover: { x: number; y: number; at: Pointed }; model: Timeline }) {
  const column = model.columnAt(at.step);
  if (!column) return null;
  const rows: [string, string][] = [
    ["step time", duration(column.us / model.stride)],
    ["scheduling", duration(column.planUs)],
    ["batch", `${count(column.rows)} sequences, ${count(column.tokens)} tokens`],
    ["waiting", count(column.waiting)],
  ];
  if (column.blocked) rows.push(["blocked by", WAITS[column.blocked] ?? column.blocked]);
  const { lane } = at;
  if (lane) {
    const place = lane.steps.findIndex((step) => step <= at.step && at.step < step + model.stride);
    const doing =
      place >= 0
        ? `${lane.kinds[place] === DECODE ? "decode" : "prefill"}, ${count(lane.tokens[place])} tokens`
        : at.step < (lane.steps[0] ?? Number.POSITIVE_INFINITY) && at.step >= lane.first
          ? "waiting"
          : lane.preempted.some(({ step }) => step <= at.step) && at.step < lane.last
            ? "preempted"
            : "–";
    rows.push([`request #${lane.about?.request ?? "?"}`, doing]);
    if (lane.about?.adapter) rows.push(["adapter", lane.about.adapter]);
    if (lane.about) rows.push(["click", "opens the request"]);
  }
  const steps = model.stride > 1 ? `Steps #${column.number}–${column.number + model.stride - 1}` : `Step #${column.number}`;
  return (
    <Tip x={x} y={y}>
      <TipRows title={steps} rows={rows} />
    </Tip>
  );
}
