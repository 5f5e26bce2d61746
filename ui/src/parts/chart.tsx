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

const wholeMinutes = (splits: number[]): boolean => splits.every((value) => value % 60 === 0);

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
}) {
  const box = useRef<HTMLDivElement>(null);
  const values = useRef<(HTMLElement | null)[]>([]);
  const plot = useRef<uPlot | null>(null);
  const data = [t, ...lines.map((line) => line.values)] as uPlot.AlignedData;
  const latest = useRef({ data, format });
  latest.current = { data, format };
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
    const axis = { stroke: colour("text-3"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "13px system-ui", size: 24 };
    return {
      width: width || 300,
      height: HEIGHT,
      legend: { show: false },
      tzDate: daily ? (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") : undefined,
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: (_, __, top) => [0, max ?? Math.max((top ?? 0) * 1.15, least)] } },
      axes: [
        { ...axis, space: 70, values: (_, splits) => (daily ? splits.map(monthDay) : splits.map((value) => clock(value).slice(0, wholeMinutes(splits) ? 5 : 8))) },
        { ...axis, size: 64, space: 34, values: (_, splits) => splits.map((value) => latest.current.format(value)) },
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
      say(null);
      sized.observe(element);
    });
    return () => {
      forget();
      sized.disconnect();
      made?.destroy();
      plot.current = null;
    };
  }, [key, lines.length, lines.map((line) => lonely(line.values)).join()]);
  useEffect(() => {
    plot.current?.setData(data);
  }, [t, lines.map((line) => line.values.length).join()]);
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
      <div ref={box} role="img" aria-label={`${title}, over time`} />
    </figure>
  );
}
