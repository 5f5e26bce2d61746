/** The stages of the engine: blocks found and missed, its place in the batch, the draw of each token. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { LabAnswer, RequestDetail, StepWindow } from "../../lib/api";
import { count, duration, percent, visible } from "../../lib/format";
import { errorMessage } from "../../lib/http";
import { facts } from "../../lib/live";
import { Computed, Legend, Problem, Stat, Table } from "../../parts/basics";
import { ink, useCanvas } from "../../parts/canvas";
import { ExplanationView } from "../../parts/explanation";
import type { StepProps } from "./follow";
import { NoTexts } from "./follow-frontend";
import { fetchDraw, fetchSteps } from "./follow-state";

const SETTLE_MS = 120;
const MOST_STEPS = 2000;
const MOST_BLOCKS = 400;

export function CacheStep({ detail }: StepProps) {
  const [sequence] = detail.sequences;
  if (!sequence) return <p>It never reached the engine.</p>;
  const size = sequence.cache?.block_size ?? facts.value?.engine.block_size ?? 16;
  const [prompt, cached] = [sequence.prompt_tokens, sequence.cached_tokens ?? 0];
  const blocks = Array.from({ length: Math.min(MOST_BLOCKS, Math.ceil(prompt / size)) }, (_, place) => place);
  return (
    <>
      <p>
        The prompt takes {count(Math.ceil(prompt / size))} KV blocks of {size} tokens. {count(cached / size)} were found in the prefix cache and skipped; the
        others were computed. The last token is always computed: its logits are needed.
      </p>
      <div class="follow-blocks" role="img" aria-label={`${count(cached / size)} blocks found, ${count(Math.ceil(prompt / size) - cached / size)} computed`}>
        {blocks.map((place) => (
          <i
            key={place}
            data-colour={(place + 1) * size <= cached ? "cached" : "prefill"}
            style={{ opacity: (place + 1) * size > prompt ? 0.55 : 1 }}
            title={`tokens ${place * size} to ${Math.min(prompt, (place + 1) * size) - 1}`}
          />
        ))}
      </div>
      <Legend entries={[["cached", "found"], ["prefill", "computed"]]} />
      {sequence.cache && <ExplanationView explanation={sequence.cache} />}
    </>
  );
}

export function BatchStep({ detail }: StepProps) {
  const steps = useSignal<StepWindow | null>(null);
  const failed = useSignal("");
  const chosen = useSignal(0);
  const [sequence] = detail.sequences;
  const first = sequence?.first_step ?? 0;
  const last = Math.min(sequence?.last_step ?? 0, first + MOST_STEPS - 1);
  useEffect(() => {
    if (first)
      fetchSteps(detail, first, last).then(
        (found) => (steps.value = found),
        (error: unknown) => (failed.value = errorMessage(error)),
      );
  }, [detail.number, first, last]);
  if (!sequence || !first) return <p>It was in no step.</p>;
  const found = steps.value;
  if (failed.value) return <Problem message={failed.value} />;
  if (!found) return null;
  if (!found.steps.number.length) return <p class="muted">These steps are not kept any more.</p>;
  const own = new Map<number, { tokens: number; kind: number }>();
  found.rows.seq.forEach((seq, place) => {
    if (seq === sequence.seq) own.set(found.rows.column[place]!, { tokens: found.rows.tokens[place]!, kind: found.rows.kind[place]! });
  });
  const at = Math.min(chosen.value, found.steps.number.length - 1);
  const mine = own.get(at);
  const { steps: columns } = found;
  return (
    <>
      <p>
        {count(columns.number.length)} steps. In each, the batch is computed by one forward pass; move the slider through them.
      </p>
      <Columns window={found} own={own} chosen={at} />
      <input
        type="range"
        class="wide"
        aria-label="Step"
        min={0}
        max={columns.number.length - 1}
        value={at}
        aria-valuetext={`Step ${columns.number[at]}`}
        onInput={(event) => (chosen.value = Number(event.currentTarget.value))}
      />
      <dl class="stats" data-step-shown={columns.number[at]}>
        <Stat name="Step" value={`#${columns.number[at]}`} detail={`${duration(columns.start[at]! - detail.t)} after its arrival`} />
        <Stat name="This request" value={mine ? `${count(mine.tokens)} token${mine.tokens === 1 ? "" : "s"}` : "not in it"} detail={mine ? (mine.kind ? "decode" : "prefill") : ""} />
        <Stat name="Batch" value={count(columns.rows[at])} detail={`${count(columns.tokens[at])} tokens in all`} />
        <Stat name="Took" value={duration(columns.us[at])} detail={`forward ${duration(columns.forward_us[at])}`} />
        <Stat name="Waiting" value={count(columns.waiting[at])} detail="sequences" />
        <Stat name="KV blocks" value={count(columns.held[at])} detail={`${count(columns.free[at])} free`} />
      </dl>
    </>
  );
}

/** A bar per step: the batch, and this request in it. */
function Columns({ window: found, own, chosen }: { window: StepWindow; own: Map<number, { kind: number }>; chosen: number }) {
  const rows = found.steps.rows;
  const most = Math.max(1, ...rows);
  const { ref, redraw } = useCanvas((context, width, height) => {
    const unit = width / rows.length;
    rows.forEach((batch, place) => {
      const bar = (batch / most) * (height - 14);
      const mine = own.get(place);
      context.fillStyle = ink("c-free");
      context.fillRect(place * unit, height - bar, Math.max(unit - (unit > 4 ? 1 : 0), 0.5), bar);
      if (!mine) return;
      context.fillStyle = ink(mine.kind ? "c-decode" : "c-prefill");
      const part = Math.max(2, bar / Math.max(1, batch));
      context.fillRect(place * unit, height - part, Math.max(unit - (unit > 4 ? 1 : 0), 0.5), part);
    });
    context.fillStyle = ink("text");
    const x = (chosen + 0.5) * unit;
    context.beginPath();
    context.moveTo(x - 5, 0);
    context.lineTo(x + 5, 0);
    context.lineTo(x, 8);
    context.fill();
  });
  redraw();
  return (
    <>
      <canvas ref={ref} class="follow-columns" role="img" aria-label={`Batch size over ${rows.length} steps, at most ${most}`} />
      <Legend entries={[["prefill", "this request, prefill"], ["decode", "this request, decode"], ["free", "rest of the batch"]]} />
    </>
  );
}

export function SampleStep({ detail, texts }: StepProps) {
  const place = useSignal(0);
  const draw = useSignal<LabAnswer | null>(null);
  const failed = useSignal("");
  const most = texts ? Math.max(0, texts.output.length - 1) : 0;
  useEffect(() => {
    if (!texts) return;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      fetchDraw(detail, texts, place.value, abort.signal).then(
        (found) => ((draw.value = found), (failed.value = "")),
        (error: unknown) => {
          if (!abort.signal.aborted) failed.value = errorMessage(error);
        },
      );
    }, SETTLE_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [texts, place.value]);
  if (!texts) return <NoTexts />;
  if (!texts.output.length) return <p>It has no output.</p>;
  return (
    <>
      <p>
        Output token {place.value + 1} of {count(texts.output.length)}: <span class="mono">{visible(texts.outputStrings[place.value] ?? "")}</span>. Logits become
        probabilities, filters drop candidates, and one token is drawn. <Computed what="Computed anew by the lab" />
      </p>
      <input
        type="range"
        class="wide"
        aria-label="Output token"
        min={0}
        max={most}
        value={place.value}
        aria-valuetext={`Token ${place.value + 1}`}
        onInput={(event) => (place.value = Number(event.currentTarget.value))}
      />
      {failed.value && <Problem message={failed.value} />}
      {draw.value && <Draw found={draw.value} detail={detail} real={texts.output[place.value]} />}
    </>
  );
}

function Draw({ found, detail, real }: { found: LabAnswer; detail: RequestDetail; real: number | undefined }) {
  const stages = found.stages.filter((stage) => stage.on || stage.name === "model");
  return (
    <>
      <Table label="Probabilities after each stage" class="follow-draw">
        <thead>
          <tr>
            <th>Token</th>
            <th class="num">Logit</th>
            {stages.map((stage) => (
              <th key={stage.name} class="num">
                {stage.name}
                <small>{count(stage.kept)} kept</small>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {found.tokens.map((token, row) => (
            <tr key={token.id} data-drawn={token.id === real}>
              <th scope="row" class="mono">
                {visible(token.text)}
                {token.id === real && " ✓"}
              </th>
              <td class="num">{token.logit.toFixed(2)}</td>
              {stages.map((stage) => (
                <td key={stage.name} class="num">
                  {stage.probs[row] ? percent(stage.probs[row]) : <span class="muted">out</span>}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </Table>
      <p class="muted">
        ✓ is the token of this request.{" "}
        {"seed" in detail.params ? "Its seed decides the draw: the same request draws the same token." : "It has no seed, so another run may draw another token."}{" "}
        <a href="#/lab">Sampling lab</a>
      </p>
    </>
  );
}
