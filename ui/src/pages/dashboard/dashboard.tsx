/** SLO objectives, alerts and time series. */
import { useSignal } from "@preact/signals";
import { Fragment } from "preact";
import type { Alert, History, Series, Slo } from "../../lib/api";
import { clock, count, duration, percent, seconds, short } from "../../lib/format";
import { usePolling } from "../../lib/frames";
import { fetchJson, errorMessage } from "../../lib/http";
import { stats, wallClock } from "../../lib/live";
import { CAUSES } from "../../lib/labels";
import { Badge, Card, Empty, PageHeader, Problem, Segmented, Stat, Table } from "../../parts/basics";
import { Chart, type Line } from "../../parts/chart";

const SPANS = [
  ["300", "5 min"],
  ["900", "15 min"],
  ["3600", "1 h"],
] as const;

export function Dashboard() {
  const slo = useSignal<Slo | null>(null);
  const history = useSignal<History | null>(null);
  const problem = useSignal("");
  const span = useSignal<string>("900");
  usePolling(
    async (signal) => {
      try {
        [slo.value, history.value] = await Promise.all([
          fetchJson<Slo>("/slo", { signal }),
          fetchJson<History>(`/observe/history?seconds=${span.value}&points=300`, { signal }),
        ]);
        problem.value = "";
      } catch (error) {
        if (!signal.aborted) problem.value = errorMessage(error);
      }
    },
    3000,
    [span.value],
  );
  return (
    <>
      <PageHeader title="Dashboard" terms="dashboard" lead="Service-level objectives (SLO), alerts and recent metrics.">
        <Segmented label="Time span" value={span.value} options={SPANS} onChange={(next) => (span.value = next)} />
      </PageHeader>
      <div class="stack">
        {problem.value && <Problem message={problem.value} />}
        <Now />
        {slo.value && <Objectives slo={slo.value} />}
        {history.value && <Charts history={history.value} />}
        {slo.value && slo.value.recent.length > 0 && <Past alerts={slo.value.recent} />}
      </div>
    </>
  );
}

function Now() {
  const now = stats.value;
  return (
    <Card>
      <dl class="stats">
        <Stat name="Running" value={count(now?.running)} detail={`${count(now?.waiting)} waiting`} />
        <Stat name="Generation tok/s" value={short(now?.tokens_per_s)} detail={`${short(now?.prompt_tokens_per_s)} prompt tok/s`} />
        <Stat name="TTFT p50" value={duration(now?.ttft_us_p50)} detail={`p95 ${duration(now?.ttft_us_p95)}`} />
        <Stat name="KV cache usage" value={percent(now?.kv_use)} detail="of all blocks" />
        <Stat name="Errors" value={count(now?.errors)} tone={now?.errors ? "bad" : undefined} detail="since start" />
        {now?.gpu && <Stat name="GPU" value={percent(now.gpu.utilisation, 0)} detail={percent(now.gpu.memory_used / now.gpu.memory_total, 0) + " of memory"} />}
      </dl>
    </Card>
  );
}

function shown(value: number | null, unit: string): string {
  if (value === null) return "–";
  if (unit === "s") return seconds(value);
  if (unit === "ratio") return percent(value);
  if (unit === "times") return `${short(value)} ×`;
  return unit === "tokens/s" ? `${short(value)} tok/s` : count(value);
}

function Objectives({ slo }: { slo: Slo }) {
  const set = slo.objectives.filter((one) => one.target !== null).length;
  return (
    <Card
      title="Objectives (SLO)"
      aside={<span>over the last {seconds(slo.window_s)}</span>}
      note={set ? undefined : "No target is set: see --slo-ttft-p95 and the other --slo-* settings."}
    >
      <Table label="Objectives">
        <thead>
          <tr>
            <th>Objective</th>
            <th class="num">Target</th>
            <th class="num">Measured</th>
            <th class="num wide-only">Samples</th>
            <th>State</th>
          </tr>
        </thead>
        <tbody>
          {slo.objectives.map((one) => (
            <tr key={one.name} data-objective={one.name} data-ok={String(one.ok)}>
              <td>{one.title}</td>
              <td class="num">{one.target === null ? <span class="muted">not set</span> : `${one.op === "<=" ? "≤" : "≥"} ${shown(one.target, one.unit)}`}</td>
              <td class="num">{shown(one.value, one.unit)}</td>
              <td class="num wide-only">{count(one.samples)}</td>
              <td>
                {one.ok === null ? (
                  <Badge>{one.target === null ? "no target" : "no data"}</Badge>
                ) : (
                  <Badge tone={one.ok ? "good" : "bad"}>{one.ok ? "met" : "missed"}</Badge>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </Table>
      {slo.alerts.map((alert) => (
        <AlertLine key={alert.id} alert={alert} />
      ))}
    </Card>
  );
}

function AlertLine({ alert }: { alert: Alert }) {
  const open = alert.until === null;
  return (
    <div class="alert" data-open={open} role={open ? "alert" : undefined}>
      <Badge tone={open ? "bad" : "plain"}>{CAUSES[alert.cause] ?? alert.cause}</Badge>
      <p>
        {alert.message}{" "}
        {alert.requests.map((id) => (
          <Fragment key={id}>
            <a href={`#/requests/${encodeURIComponent(id)}`}>{id.slice(0, 8)}</a>{" "}
          </Fragment>
        ))}
      </p>
      <span class="small muted nowrap">
        {clock(wallClock(alert.since))}
        {alert.until !== null && `, for ${duration(alert.until - alert.since)}`}
      </span>
    </div>
  );
}

function Past({ alerts }: { alerts: Alert[] }) {
  return (
    <Card title="Past alerts">
      {alerts.slice(0, 20).map((alert) => (
        <AlertLine key={alert.id} alert={alert} />
      ))}
    </Card>
  );
}

function Charts({ history }: { history: History }) {
  const series = (name: string): Series => (Array.isArray(history[name]) ? (history[name] as Series) : history.t.map(() => null));
  const line = (label: string, name: string, colour: string): Line => ({ label, colour, values: series(name) });
  if (history.t.length < 2)
    return (
      <Card>
        <Empty icon="dashboard" title="No data points yet">
          The first ones arrive within seconds.
        </Empty>
      </Card>
    );
  const t = history.t.map(wallClock);
  const gpu = series("gpu_utilisation").some((value) => value !== null);
  return (
    <div class="cards charts">
      <Card>
        <Chart title="TTFT" t={t} least={1000} format={duration} lines={[line("p50", "ttft_us_p50", "c-prefill"), line("p95", "ttft_us_p95", "c-wait")]} />
      </Card>
      <Card>
        <Chart title="Generation throughput" t={t} format={short} lines={[line("tok/s", "tokens_per_s", "c-decode")]} />
      </Card>
      <Card>
        <Chart title="Sequences in the engine" t={t} format={short} lines={[line("running", "running", "c-decode"), line("waiting", "waiting", "c-wait")]} />
      </Card>
      <Card>
        <Chart
          title="KV cache"
          t={t}
          max={1}
          format={(value) => percent(value, 0)}
          lines={[line("usage", "kv_use", "c-cached"), line("prefix cache hit rate", "prefix_hit_ratio", "c-decode")]}
        />
      </Card>
      <Card>
        <Chart title="Step time" t={t} least={1000} format={duration} lines={[line("mean", "step_us_mean", "accent")]} />
      </Card>
      <Card>
        <Chart title="Errors" t={t} format={short} lines={[line("errors", "errors", "c-preempted")]} />
      </Card>
      {gpu && (
        <Card>
          <Chart title="GPU" t={t} max={1} format={(value) => percent(value, 0)} lines={[line("utilization", "gpu_utilisation", "c-prefill")]} />
        </Card>
      )}
    </div>
  );
}
