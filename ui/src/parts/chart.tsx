/** A line chart of the recent past, on uPlot. Its head shows the values under the pointer, or the latest. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { clock } from "../lib/format";
import { inTurn } from "../lib/frames";
import { colour, theme } from "../lib/theme";

export interface Line {
  label: string;
  colour: string;
  values: (number | null)[];
}

const HEIGHT = 150;
const LABEL_FONT = "13px system-ui";
const LEAST_AXIS = 64; // CSS pixels: the charts of a page are aligned
const LABEL_GAP = 8;
const POWERS_OF_TWO = Array.from({ length: 40 }, (_, power) => 2 ** (power + 10));
const LOG_SCALE: uPlot.Scale = { distr: 3, log: 10, range: (_, low, high) => (low > 0 ? uPlot.rangeLog(low, high, 10, true) : [1, 10]) };

const wholeMinutes = (splits: number[]): boolean => splits.every((value) => value % 60 === 0);

/** The y axis is as wide as its longest label, such as "$0.00005". */
function labelWidth(chart: uPlot, labels: string[] | null): number {
  chart.ctx.save();
  chart.ctx.font = LABEL_FONT;
  const widest = Math.max(0, ...(labels ?? []).map((label) => chart.ctx.measureText(label).width));
  chart.ctx.restore();
  return Math.max(LEAST_AXIS, Math.ceil(widest) + LABEL_GAP);
}

/** "Jan 31" of a whole UTC day; nothing between two days. */
function monthDay(seconds: number): string {
  return seconds % 86_400 ? "" : new Date(seconds * 1000).toLocaleDateString("en-US", { month: "short", day: "numeric", timeZone: "UTC" });
}

/** Isolated values between gaps, drawn as points. */
const lonely = (values: (number | null)[]): boolean => values.some((value, at) => value != null && values[at - 1] == null && values[at + 1] == null);

export function Chart({
  title,
  t,
  lines,
  format,
  max,
  least = 1,
  daily = false,
  hideTitle = false,
  log = false,
  binary = false,
  sync,
  onPick,
}: {
  title: string;
  /** Unix seconds. */
  t: number[];
  lines: Line[];
  format: (value: number) => string;
  max?: number;
  /** The scale never ends below this. */
  least?: number;
  /** One value per UTC day. */
  daily?: boolean;
  /** The card around it has a title. */
  hideTitle?: boolean;
  /** Logarithmic values; what is not above 0 is not drawn. */
  log?: boolean;
  /** Bytes: the axis is divided at powers of two. */
  binary?: boolean;
  /** Charts of one name share their crosshair. */
  sync?: string;
  /** Called with the index of the point that is clicked, or chosen with Enter. */
  onPick?: (index: number) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const values = useRef<(HTMLElement | null)[]>([]);
  const plot = useRef<uPlot | null>(null);
  const drawn = (values: Line["values"]): Line["values"] => (log ? values.map((value) => (value && value > 0 ? value : null)) : values);
  const data = [t, ...lines.map((line) => drawn(line.values))] as uPlot.AlignedData;
  const latest = useRef({ data, format, onPick });
  latest.current = { data, format, onPick };
  const say = (index: number | null | undefined): void => {
    lines.forEach((_, place) => {
      const series = latest.current.data[place + 1] ?? [];
      let at = index ?? series.length - 1;
      if (index == null) while (at > 0 && series[at] == null) at -= 1;
      const value = series[at];
      const element = values.current[place];
      if (element) element.textContent = value == null ? "–" : latest.current.format(value);
    });
  };
  const options = (width: number): uPlot.Options => {
    const axis = { stroke: colour("text-3"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: LABEL_FONT, size: 24 };
    return {
      width: width || 300,
      height: HEIGHT,
      legend: { show: false },
      tzDate: daily ? (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") : undefined,
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false }, sync: sync === undefined ? undefined : { key: sync, setSeries: false } },
      scales: { x: { time: true }, y: log ? LOG_SCALE : { range: (_, __, top) => [0, max ?? Math.max((top ?? 0) * 1.15, least)] } },
      axes: [
        { ...axis, space: 70, values: (_, splits) => (daily ? splits.map(monthDay) : splits.map((value) => clock(value).slice(0, wholeMinutes(splits) ? 5 : 8))) },
        { ...axis, size: labelWidth, space: 34, incrs: binary ? POWERS_OF_TWO : undefined, values: (_, splits) => splits.map((value) => latest.current.format(value)) },
      ],
      series: [
        {},
        ...lines.map((line) => ({
          stroke: colour(line.colour),
          fill: lines.length === 1 ? `color-mix(in srgb, ${colour(line.colour)} 12%, transparent)` : undefined,
          width: 1.6,
          points: { show: daily || lonely(line.values), size: 4 },
          spanGaps: false,
        })),
      ],
      hooks: { setCursor: [(chart) => say(chart.cursor.idx)], setData: [() => say(null)] },
    };
  };
  const key = theme.value;
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    let made: uPlot | null = null;
    const sized = new ResizeObserver(() => made?.setSize({ width: element.clientWidth, height: HEIGHT }));
    const forget = inTurn(() => {
      made = plot.current = new uPlot(options(element.clientWidth), latest.current.data, element);
      made.over.addEventListener("click", () => pick());
      say(null);
      sized.observe(element);
    });
    return () => {
      forget();
      sized.disconnect();
      made?.destroy();
      plot.current = null;
    };
  }, [key, log, lines.length, lines.map((line) => lonely(line.values)).join()]);
  useEffect(() => inTurn(() => plot.current?.setData(latest.current.data)), [t, log, lines.map((line) => line.values.length).join()]);
  const pick = (): void => {
    const index = plot.current?.cursor.idx;
    if (index != null) latest.current.onPick?.(index);
  };
  const press = (event: KeyboardEvent): void => {
    const chart = plot.current;
    if (!chart) return;
    if (event.key === "Enter") return pick();
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const points = chart.data[0];
    const index = Math.max(0, Math.min(points.length - 1, (chart.cursor.idx ?? points.length) + by));
    const { left, top } = chart.over.getBoundingClientRect();
    // As the pointer does, so that charts of the same name follow.
    chart.over.dispatchEvent(new MouseEvent("mousemove", { clientX: left + chart.valToPos(points[index]!, "x"), clientY: top + 1 }));
  };
  return (
    <figure class="chart">
      <figcaption>
        {!hideTitle && <h2>{title}</h2>}
        <ul class="legend">
          {lines.map((line, place) => (
            <li key={line.label}>
              <i data-colour={line.colour.replace("c-", "")} />
              {line.label}
              <b ref={(element) => void (values.current[place] = element)}>–</b>
            </li>
          ))}
        </ul>
      </figcaption>
      {onPick ? (
        <div
          ref={box}
          class="pickable"
          role="img"
          tabIndex={0}
          aria-label={`${title}, over time. Arrow keys move along it, Enter lists the requests of that moment.`}
          onKeyDown={press}
        />
      ) : (
        <div ref={box} role="img" aria-label={`${title}, over time`} />
      )}
    </figure>
  );
}
