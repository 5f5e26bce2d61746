/** The engine's steps: the batch and queue of each, and a replay of static against continuous batching. */
import { count, duration, short } from "../../lib/format";
import { stats } from "../../lib/live";
import { WAITS } from "../../lib/labels";
import { Card, PageHeader, Stat } from "../../parts/basics";
import { ReplayCard } from "./replay";
import { TimelineCard } from "./timeline";

export function Batch() {
  const now = stats.value;
  const reasons = Object.entries(now?.waiting_by_reason ?? {}).filter(([, waiting]) => waiting > 0);
  return (
    <>
      <PageHeader title="Batch" terms="batch" lead="Every engine step: one row per sequence, one column per step, or by time. A click on a row opens its request." />
      <div class="stack">
        <Card>
          <dl class="stats">
            <Stat name="Running" value={count(now?.running)} detail="now" />
            <Stat
              name="Waiting"
              value={count(now?.waiting)}
              detail={["now", ...reasons.map(([reason, waiting]) => `${waiting}: ${WAITS[reason] ?? reason}`)].join("; ")}
            />
            <Stat name="Batch size" value={now?.batch_mean?.toFixed(1) ?? "–"} detail="mean of the last 2 s" />
            <Stat name="Step time" value={duration(now?.step_us_mean)} detail="mean of the last 2 s" />
            <Stat name="Generation tok/s" value={short(now?.tokens_per_s)} detail="over the last second" />
            <Stat name="Preemptions" value={count(now?.preemptions)} detail="since start" />
          </dl>
        </Card>
        <TimelineCard />
        <ReplayCard />
      </div>
    </>
  );
}
