/** Time series of the last minutes, alerts, and SLO objectives. */
import { useSignal } from "@preact/signals";
import { Fragment } from "preact";
import type { Alert, History, Series, Slo } from "../../lib/api";
import { bytes, clock, count, duration, percent, seconds, short } from "../../lib/format";
import { usePolling } from "../../lib/frames";
import { fetchJson, errorMessage } from "../../lib/http";
import { stats, wallClock } from "../../lib/live";
import { CAUSES } from "../../lib/labels";
import { Badge, Card, PageHeader, Problem, Segmented, Stat, Table } from "../../parts/basics";
import { Charts } from "./charts";
import { Speculation } from "./speculation";

const SPANS = [
  ["300", "5 min"],
  ["900", "15 min"],
  ["3600", "1 h"],
] as const;
const SCALES = [
  ["linear", "Linear"],
  ["log", "Log"],
] as const;

export function Dashboard() {
  const slo = useSignal<Slo | null>(null);
  const history = useSignal<History | null>(null);
  const problem = useSignal("");
  const span = useSignal<string>("900");
  const scale = useSignal<string>("linear");
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
      <PageHeader title="Dashboard" terms="dashboard" lead="Recent metrics, alerts and service-level objectives (SLO). Click a moment in a chart to list its requests.">
        <Segmented label="Scale of latencies" value={scale.value} options={SCALES} onChange={(next) => (scale.value = next)} />
        <Segmented label="Time span" value={span.value} options={SPANS} onChange={(next) => (span.value = next)} />
      </PageHeader>
      <div class="stack">
        {problem.value && <Problem message={problem.value} />}
        <Now history={history.value} />
        {slo.value && slo.value.alerts.length > 0 && (
          <Card title="Open alerts">
            {slo.value.alerts.map((alert) => (
              <AlertLine key={alert.id} alert={alert} />
            ))}
          </Card>
        )}
        {history.value && <Charts history={history.value} log={scale.value === "log"} />}
        <Speculation />
        {slo.value && <Objectives slo={slo.value} />}
        {slo.value && slo.value.recent.length > 0 && <Past alerts={slo.value.recent} />}
      </div>
    </>
  );
}

function Now({ history }: { history: History | null }) {
  const now = stats.value;
  const last = (name: string): number | null => (history?.[name] as Series | undefined)?.at(-1) ?? null;
  return (
    <Card>
      <dl class="stats">
        <Stat name="Running" value={count(now?.running)} detail={`${count(now?.waiting)} waiting`} />
        <Stat name="Generation tok/s" value={short(now?.tokens_per_s)} detail={`${short(now?.prompt_tokens_per_s)} prompt tok/s`} />
        <Stat name="TTFT p50" value={duration(now?.ttft_us_p50)} detail={`p95 ${duration(now?.ttft_us_p95)}`} />
        <Stat name="KV cache usage" value={percent(now?.kv_use)} detail="of all blocks" />
        <Stat name="Errors" value={count(now?.errors)} tone={now?.errors ? "bad" : undefined} detail="since start" />
        {last("cpu") !== null && <Stat name="CPU" value={percent(last("cpu"), 0)} detail={`${percent(last("server_cpu"), 0)} by this server`} />}
        {last("server_memory") !== null && <Stat name="Memory" value={bytes(last("server_memory"))} detail={`of ${bytes(last("memory_total"))}, by this server`} />}
        {now?.gpu && <Stat name="GPU" value={percent(now.gpu.utilisation, 0)} detail={`${bytes(now.gpu.memory_used)} of ${bytes(now.gpu.memory_total)} in use`} />}
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

/** Folded while no target is set. */
function Objectives({ slo }: { slo: Slo }) {
  const set = slo.objectives.filter((one) => one.target !== null).length;
  return (
    <section class="card">
      <details class="objectives" open={set > 0}>
        <summary>
          <h2>Objectives (SLO)</h2> <span class="muted">{set ? `over the last ${seconds(slo.window_s)}` : "no target is set"}</span>
        </summary>
        {!set && (
          <p class="note">
            <code>--slo-ttft-p95</code> and the other <code>--slo-*</code> settings set targets. An objective that is missed raises an alert.
          </p>
        )}
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
      </details>
    </section>
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
