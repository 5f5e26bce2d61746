/** Time series of the last minutes. They share a crosshair; a click leads to the requests of that moment. */
import type { History, Series } from "../../lib/api";
import { bytes, duration, percent, short } from "../../lib/format";
import { wallClock } from "../../lib/live";
import { goTo } from "../../lib/router";
import { Card, Empty } from "../../parts/basics";
import { Chart, type Line } from "../../parts/chart";

type Entry = readonly [label: string, series: string, colour: string];

interface Plot {
  title: string;
  lines: Entry[];
  format: (value: number) => string;
  latency?: boolean; // microseconds; the scale can be logarithmic
  share?: boolean; // of 1
}

const percentiles = (name: string): Entry[] => [
  ["p50", `${name}_p50`, "c-prefill"],
  ["p95", `${name}_p95`, "c-wait"],
  ["p99", `${name}_p99`, "c-preempted"],
];

const PLOTS: Plot[] = [
  { title: "TTFT", lines: percentiles("ttft_us"), format: duration, latency: true },
  { title: "Inter-token latency", lines: percentiles("inter_token_us"), format: duration, latency: true },
  { title: "Request latency", lines: percentiles("e2e_us"), format: duration, latency: true },
  { title: "Queue time", lines: percentiles("queue_us").slice(0, 2), format: duration, latency: true },
  {
    title: "Throughput",
    lines: [
      ["output tok/s", "tokens_per_s", "c-decode"],
      ["prompt tok/s", "prompt_tokens_per_s", "c-prefill"],
    ],
    format: short,
  },
  {
    title: "Sequences in the engine",
    lines: [
      ["running", "running", "c-decode"],
      ["waiting", "waiting", "c-wait"],
    ],
    format: short,
  },
  {
    title: "KV cache",
    lines: [
      ["usage", "kv_use", "c-cached"],
      ["prefix cache hit rate", "prefix_hit_ratio", "c-decode"],
    ],
    format: (value) => percent(value, 0),
    share: true,
  },
  { title: "Step time", lines: [["mean", "step_us_mean", "accent"]], format: duration, latency: true },
  {
    title: "Preemptions and errors",
    lines: [
      ["preemptions", "preemptions", "c-wait"],
      ["errors", "errors", "c-preempted"],
    ],
    format: short,
  },
  {
    title: "CPU",
    lines: [
      ["machine", "cpu", "c-output"],
      ["this server", "server_cpu", "accent"],
    ],
    format: (value) => percent(value, 0),
    share: true,
  },
  {
    title: "Memory",
    lines: [
      ["machine", "memory", "c-output"],
      ["this server", "server_memory", "accent"],
    ],
    format: bytes,
  },
  { title: "GPU utilization", lines: [["utilization", "gpu_utilisation", "c-prefill"]], format: (value) => percent(value, 0), share: true },
  { title: "GPU memory", lines: [["in use", "gpu_memory", "c-cached"]], format: bytes },
];

const LEAST_US = 1000;

export function Charts({ history, log }: { history: History; log: boolean }) {
  const series = (name: string): Series => (Array.isArray(history[name]) ? (history[name] as Series) : history.t.map(() => null));
  const known = (plot: Plot): boolean => !/^(CPU|Memory|GPU)/.test(plot.title) || plot.lines.some(([, name]) => series(name).some((value) => value !== null));
  if (history.t.length < 2)
    return (
      <Card>
        <Empty icon="dashboard" title="No data points yet">
          The first ones arrive within seconds.
        </Empty>
      </Card>
    );
  const t = history.t.map(wallClock);
  const drill = (index: number): void => {
    const end = history.t[index]!;
    goTo("requests", { from: String(Math.round(end - history.interval_s * 1e6)), to: String(end) });
  };
  return (
    <div class="cards charts">
      {PLOTS.filter(known).map(({ title, lines, format, latency, share }) => (
        <Card key={title}>
          <Chart
            title={title}
            t={t}
            sync="dashboard"
            log={latency === true && log}
            max={share ? 1 : undefined}
            binary={format === bytes}
            least={latency ? LEAST_US : 1}
            format={format}
            lines={lines.map(([label, name, colour]): Line => ({ label, colour, values: series(name) }))}
            onPick={drill}
          />
        </Card>
      ))}
    </div>
  );
}
