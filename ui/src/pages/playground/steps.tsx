/** Speculation live: each step's draft, what was accepted of it, and the model's own token. */
import { useMemo } from "preact/hooks";
import { percent, visible } from "../../lib/format";
import { Acceptance } from "../../parts/acceptance";
import type { DraftStep, Message } from "./message";

const SHOWN = 400; // newest steps

/** What became of a drafted token. Those after the first wrong one were never looked at. */
const fate = (step: DraftStep, place: number): "accepted" | "rejected" | "unused" =>
  place < step.accepted ? "accepted" : place === step.accepted ? "rejected" : "unused";

export function StepsView({ message }: { message: Message }) {
  message.version.value;
  const { steps } = message;
  const all = figures(steps);
  const hidden = Math.max(0, steps.length - SHOWN);
  const faster = speedUp(steps);
  return (
    <div class="steps">
      <dl class="figures" aria-label="Speculation so far">
        <Figure name="steps" value={steps.length} />
        <Figure name="tokens" value={all.tokens} />
        <Figure name="drafted" value={all.drafts} />
        <Figure name="accepted" value={`${all.hits} (${percent(all.drafts ? all.hits / all.drafts : null, 0)})`} />
        <Figure name="tokens per step" value={steps.length ? (all.tokens / steps.length).toFixed(2) : "–"} />
        {faster !== null && <Figure name="speed-up (estimate)" value={`${faster.toFixed(2)}×`} />}
        <Figure name="steps saved" value={all.tokens ? percent(1 - steps.length / all.tokens, 0) : "–"} />
      </dl>
      <Acceptance {...byPosition(steps)} />
      <p class="small muted">
        A step computes the drafted tokens behind the newest one, and the model draws its own token at each position. Drafts that equal these draws are{" "}
        <span class="draft accepted">accepted</span>; the first <s class="draft rejected">wrong one</s> gives way to the model’s <b class="draft own">own draw</b>;{" "}
        <s class="draft unused">drafts behind it</s> are dropped. The text is the same as without drafts.
      </p>
      {steps.length > SHOWN && <p class="small muted">The newest {SHOWN} steps:</p>}
      <ol class="step-list">
        {steps.slice(-SHOWN).map((step, place) => (
          <Step key={hidden + place} number={hidden + place + 1} step={step} />
        ))}
      </ol>
    </div>
  );
}

function Step({ number, step }: { number: number; step: DraftStep }) {
  return useMemo(() => {
    const own = step.tokens.slice(step.accepted);
    return (
      <li data-drafted={step.drafted.length} data-accepted={step.accepted}>
        <span class="step-number">{number}</span>
        <span class="mono">
          {step.drafted.map((text, place) => {
            const became = fate(step, place);
            return became === "accepted" ? (
              <span key={place} class="draft accepted">
                {visible(text)}
              </span>
            ) : (
              <s key={place} class={`draft ${became}`}>
                {visible(text)}
              </s>
            );
          })}
          {own.map((text, place) => (
            <b key={`own${place}`} class="draft own">
              {visible(text)}
            </b>
          ))}
        </span>
        <small class="muted">
          {step.drafted.length ? `${step.accepted} of ${step.drafted.length}` : "no draft"} · +{step.tokens.length}
        </small>
      </li>
    );
  }, [number, step]);
}

/** Of the decode so far, against steps without drafts at the median time between such steps of this answer; null: too few. */
function speedUp(steps: DraftStep[]): number | null {
  const gaps = steps.slice(1).flatMap(({ drafted, at = 0 }, place) => {
    const gap = at - (steps[place]!.at ?? 0);
    return !drafted.length && gap > 0 ? [gap] : [];
  });
  const took = (steps.at(-1)?.at ?? 0) - (steps[0]?.at ?? 0);
  if (gaps.length < 5 || took <= 0) return null;
  const plain = gaps.sort((a, b) => a - b)[gaps.length >> 1]!;
  const tokens = steps.slice(1).reduce((sum, step) => sum + step.tokens.length, 0);
  return (tokens * plain) / took;
}

function Figure({ name, value }: { name: string; value: string | number }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd data-figure={name}>{value}</dd>
    </div>
  );
}

export function figures(steps: DraftStep[]): { tokens: number; drafts: number; hits: number } {
  const sum = { tokens: 0, drafts: 0, hits: 0 };
  for (const step of steps) {
    sum.tokens += step.tokens.length;
    sum.drafts += step.drafted.length;
    sum.hits += step.accepted;
  }
  return sum;
}

/** Drafted and accepted tokens by position in the draft. */
function byPosition(steps: DraftStep[]): { drafted: number[]; accepted: number[] } {
  const [drafted, accepted]: [number[], number[]] = [[], []];
  for (const step of steps)
    for (let place = 0; place < step.drafted.length; place += 1) {
      drafted[place] = (drafted[place] ?? 0) + 1;
      accepted[place] = (accepted[place] ?? 0) + (place < step.accepted ? 1 : 0);
    }
  return { drafted, accepted };
}

/** Of each token of the answer: whether it had been drafted. Empty if the stream told no drafts. */
export function acceptedTokens(steps: DraftStep[]): boolean[] {
  return steps.flatMap(({ tokens, accepted }) => tokens.map((_, place) => place < accepted));
}
