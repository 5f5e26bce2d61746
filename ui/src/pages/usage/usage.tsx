/** Usage and cost: curves over days, sums by tenant, model and key, CSV. */
import { useSignal } from "@preact/signals";
import { lock, lockReason, unlocked } from "../../lib/admin";
import { count, percent, short, usd } from "../../lib/format";
import { usePolling } from "../../lib/frames";
import { saveFile } from "../../lib/files";
import { errorMessage } from "../../lib/http";
import { facts } from "../../lib/live";
import { Unlock } from "../../parts/admin";
import { Button, Card, Empty, PageHeader, Problem, Segmented, Stat, Table } from "../../parts/basics";
import { Chart, type Line } from "../../parts/chart";
import { type Group, type Row, ask, dayName, lastDays, queryOf, usage } from "./api";
import { METRICS, type Metric, type Sum, byGroup, perDay, sum } from "./sums";

const SPANS = [
  ["7", "7 days"],
  ["30", "30 days"],
  ["90", "90 days"],
] as const;
const GROUPS = [
  ["tenant", "Tenant"],
  ["model", "Model"],
  ["key", "Key"],
] as const;
const COLOURS = ["c-decode", "c-prefill", "c-wait", "c-cached", "c-preempted", "c-intake"];
const OTHERS = "c-output";

/** Whether the server has a ledger; null: not known yet. */
function hasLedger(): boolean | null {
  const settings = facts.value?.settings.tenants;
  return facts.value && Boolean(settings?.keys || settings?.ledger);
}

export function Usage() {
  const span = useSignal<string>("30");
  const group = useSignal<Group>("tenant");
  const metric = useSignal<Metric>("cost");
  const found = useSignal<{ rows: Row[]; days: number[]; group: Group } | null>(null);
  const missing = hasLedger() === false;
  const problem = useSignal("");
  const asking = useSignal(false); // for an admin key
  usePolling(
    async (signal) => {
      if (!hasLedger()) return; // as of now: this may be called before the page is drawn with the facts
      try {
        const days = lastDays(Number(span.value));
        const by = group.value;
        found.value = { rows: await usage(by, days, signal), days, group: by };
        problem.value = "";
      } catch (error) {
        if (!signal.aborted) problem.value = errorMessage(error);
      }
    },
    15_000,
    [span.value, group.value, unlocked.value, hasLedger()],
  );
  const partial = facts.value?.keys === true && !facts.value.scopes.includes("admin") && !unlocked.value;
  return (
    <>
      <PageHeader title="Usage" terms="usage" lead="Tokens and cost of each request that ended, from the ledger.">
        <Segmented label="Days" value={span.value} options={SPANS} onChange={(next) => (span.value = next)} />
        <Segmented label="By" value={group.value} options={GROUPS} onChange={(next) => (group.value = next)} />
        <Button icon="download" disabled={!found.value} onClick={() => void download(group.value, Number(span.value)).catch((error: unknown) => (problem.value = errorMessage(error)))}>
          CSV
        </Button>
        {unlocked.value && (
          <Button icon="lock" onClick={() => lock("Locked.")}>
            Lock
          </Button>
        )}
      </PageHeader>
      <div class="stack">
        {problem.value && <Problem message={problem.value} />}
        {missing && (
          <Empty icon="usage" title="This server keeps no ledger">
            Start it with --ledger, or with --keys, to record what each request uses and costs.
          </Empty>
        )}
        {partial && !missing && (
          <p class="row small muted">
            This is the usage of your own tenant.
            <Button kind="quiet" icon="key" aria-expanded={asking.value} onClick={() => (asking.value = !asking.value)}>
              All tenants
            </Button>
          </p>
        )}
        {partial && asking.value && <Unlock reason={lockReason.value ?? ""} />}
        {found.value && !missing && <Body {...found.value} metric={metric} />}
      </div>
    </>
  );
}

function Body({ rows, days, group, metric }: { rows: Row[]; days: number[]; group: Group; metric: { value: Metric } }) {
  const total = sum("Total", rows);
  const sums = byGroup(rows, group, metric.value);
  const shown = METRICS[metric.value];
  const title = GROUPS.find(([name]) => name === group)![1];
  return (
    <>
      <Totals total={total} />
      <Card
        title={`${shown.label} per day by ${title.toLowerCase()}`}
        aside={<Segmented label="Figure" value={metric.value} options={Object.entries(METRICS).map(([name, { label }]) => [name as Metric, label] as const)} onChange={(next) => (metric.value = next)} />}
      >
        {rows.length ? <Curves key={`${group} ${metric.value}`} rows={rows} days={days} group={group} metric={metric.value} sums={sums} /> : <Empty icon="usage" title="No usage in these days" />}
      </Card>
      {rows.length > 0 && <Sums title={title} sums={sums} total={total} />}
      {total.cached_tokens > 0 && <Caching rows={rows} days={days} />}
    </>
  );
}

function Totals({ total }: { total: Sum }) {
  return (
    <Card>
      <dl class="stats">
        <Stat name="Cost" value={usd(total.cost_usd)} />
        <Stat name="Saved by prompt caching" value={usd(total.cache_savings_usd)} detail={`${percent(total.cached_tokens / Math.max(1, total.input_tokens))} of input cached`} />
        <Stat name="Requests" value={short(total.requests)} />
        <Stat name="Input tokens" value={short(total.input_tokens)} detail={`${short(total.cached_tokens)} cached`} />
        <Stat name="Output tokens" value={short(total.output_tokens)} detail={total.drafted_tokens ? `${short(total.drafted_tokens)} drafted` : undefined} />
      </dl>
    </Card>
  );
}

function Curves({ rows, days, group, metric, sums }: { rows: Row[]; days: number[]; group: Group; metric: Metric; sums: Sum[] }) {
  const { of, label } = METRICS[metric];
  const own = sums.slice(0, COLOURS.length);
  const names = new Set(own.map(({ name }) => name));
  const lines: Line[] = own.map(({ name, label: named }, place) => ({
    label: named || "none",
    colour: COLOURS[place]!,
    values: perDay(rows.filter((row) => (row[group] ?? "") === name), days, of),
  }));
  if (sums.length > own.length)
    lines.push({ label: `${sums.length - own.length} others`, colour: OTHERS, values: perDay(rows.filter((row) => !names.has(row[group] ?? "")), days, of) });
  return <Chart title={`${label} per day`} hideTitle daily t={days} lines={lines} least={metric === "cost" ? 1e-4 : 1} format={metric === "cost" ? usd : short} />;
}

function Caching({ rows, days }: { rows: Row[]; days: number[] }) {
  return (
    <div class="cards charts">
      <Card>
        <Chart title="Saved by prompt caching" daily t={days} least={1e-4} format={usd} lines={[{ label: "per day", colour: "c-cached", values: perDay(rows, days, (row) => row.cache_savings_usd) }]} />
      </Card>
      <Card>
        <Chart
          title="Input tokens"
          daily
          t={days}
          format={short}
          lines={[
            { label: "cached", colour: "c-cached", values: perDay(rows, days, (row) => row.cached_tokens) },
            { label: "computed", colour: "c-prefill", values: perDay(rows, days, (row) => row.input_tokens - row.cached_tokens) },
          ]}
        />
      </Card>
    </div>
  );
}

function Sums({ title, sums, total }: { title: string; sums: Sum[]; total: Sum }) {
  const cells = (one: Sum) => (
    <>
      <td class="num">{count(one.requests)}</td>
      <td class="num">{count(one.input_tokens)}</td>
      <td class="num">{percent(one.cached_tokens / Math.max(1, one.input_tokens))}</td>
      <td class="num">{count(one.output_tokens)}</td>
      <td class="num">{usd(one.cache_savings_usd)}</td>
      <td class="num">{usd(one.cost_usd)}</td>
      <td class="num">{total.cost_usd ? percent(one.cost_usd / total.cost_usd) : "–"}</td>
    </>
  );
  return (
    <Card title={`By ${title.toLowerCase()}`}>
      <Table label={`Usage by ${title.toLowerCase()}`} class="usage-table">
        <thead>
          <tr>
            <th>{title}</th>
            <th class="num">Requests</th>
            <th class="num">Input</th>
            <th class="num">Cached</th>
            <th class="num">Output</th>
            <th class="num">Saved</th>
            <th class="num">Cost</th>
            <th class="num">Share</th>
          </tr>
        </thead>
        <tbody>
          {sums.map((one) => (
            <tr key={one.name} data-group={one.name}>
              <td class="key-name">
                {one.label || <span class="muted">none</span>}
                {one.label !== one.name && <code class="muted"> {one.name}</code>}
              </td>
              {cells(one)}
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr>
            <th>Total</th>
            {cells(total)}
          </tr>
        </tfoot>
      </Table>
    </Card>
  );
}

/** The server's CSV, as a file: a link could not send the key. */
async function download(group: Group, span: number): Promise<void> {
  const days = lastDays(span);
  const query = queryOf(group, days);
  query.set("format", "csv");
  const file = await (await ask(query.toString())).blob();
  saveFile(file, `usage-${group}-${dayName(days[0]!)}-${dayName(days.at(-1)!)}.csv`);
}
