/** What a stage does, why, and its figures of now. */
import { bytes, count, duration, percent, short } from "../../lib/format";
import { Badge, Card, Stat } from "../../parts/basics";
import type { PipelineAnswer, Rates } from "./data";
import { STAGES } from "./stages";

export function StageDetail({ name, answer, rates }: { name: string; answer: PipelineAnswer | null; rates: Rates | null }) {
  const stage = STAGES.find((one) => one.name === name) ?? STAGES[0]!;
  const figures = answer?.stages.find((one) => one.name === stage.name);
  const off = answer?.active[stage.name] === false;
  return (
    <Card title={stage.title} class="stage-card" aside={off ? <Badge>Off</Badge> : <code>{`src/penstock/${stage.file}`}</code>}>
      <div class="stage-text">
        <p>{stage.what}</p>
        <p class="muted">{stage.why}</p>
        {stage.formula && <p class="formula mono">{stage.formula}</p>}
        {off && stage.off && <p>{stage.off}</p>}
        {stage.page && (
          <p>
            <a href={`#/${stage.page[0]}`}>Open {stage.page[1]}</a>
          </p>
        )}
      </div>
      <div>
        <dl class="stats" data-stage-figures={stage.name}>
          {figures && (
            <>
              <Stat name="In it now" value={count(figures.now)} />
              {figures.us_p50 !== null && <Stat name="Median" value={duration(figures.us_p50)} detail={`p95 ${duration(figures.us_p95)}`} />}
              {figures.count > 0 && <Stat name="Passes, 60 s" value={count(figures.count)} />}
              {figures.refused > 0 && <Stat name="Refused, 60 s" value={count(figures.refused)} tone="warn" />}
            </>
          )}
          {answer && more(stage.name, answer, rates).map(([label, value, detail]) => <Stat key={label} name={label} value={value} detail={detail} />)}
        </dl>
        <p class="small muted">
          From <code>GET /observe/pipeline</code>: <code>{`stages[name=${stage.name}]`}</code> and <code>totals</code>, of all tenants.
        </p>
      </div>
    </Card>
  );
}

/** Figures of one stage alone, from the totals: per second while something runs, else since the start. */
function more(name: string, { totals }: PipelineAnswer, rates: Rates | null): [string, string, string?][] {
  const perStep = (seconds: number): string => duration(totals.steps ? Math.round((seconds / totals.steps) * 1e6) : null);
  const forward = totals.step_s - totals.plan_s - totals.settle_s;
  switch (name) {
    case "prefill":
      return [
        ["Prompt tokens computed", count(totals.prefill_tokens), rates ? `${short(rates.prefill_tokens)}/s` : undefined],
        ["From the prefix cache", count(totals.hit_tokens), percent(totals.hit_tokens / Math.max(1, totals.prompt_tokens))],
      ];
    case "decode":
      return [
        ["Steps", count(totals.steps), rates ? `${short(rates.steps)}/s` : undefined],
        ["Mean step", perStep(totals.step_s), `plan ${perStep(totals.plan_s)}, forward ${perStep(forward)}, settle ${perStep(totals.settle_s)}`],
        ["Mean batch", totals.steps ? (totals.rows / totals.steps).toFixed(2) : "–", "sequences per step"],
      ];
    case "sample":
      return [
        ["Output tokens", count(totals.output_tokens), rates ? `${short(rates.output_tokens)}/s` : undefined],
        ["Time", "part of the forward pass", "see Mean step of Decode"],
      ];
    case "speculate":
      return [
        ["Drafted", count(totals.drafted), rates ? `${short(rates.drafted)}/s` : undefined],
        ["Accepted", count(totals.accepted), totals.drafted ? percent(totals.accepted / totals.drafted) : undefined],
      ];
    case "detokenize":
      return [["Frame to text", perStep(totals.text_s), "mean per step, all sequences"]];
    case "stream":
      return [
        ["Writes", count(totals.writes), rates ? `${short(rates.writes)}/s` : undefined],
        ["Written", bytes(totals.written_bytes), rates ? `${bytes(rates.written_bytes)}/s` : undefined],
      ];
    default:
      return [];
  }
}
