/** The model's logits for the next token, after each stage of the sampler. */
import { useEffect } from "preact/hooks";
import type { LabAnswer, LabStage } from "../../lib/api";
import { count, duration, percent, visible } from "../../lib/format";
import { useShortcuts } from "../../lib/shortcuts";
import { Button, Card, Empty, Field, PageHeader, Problem, Segmented, Stat, Table } from "../../parts/basics";
import { Icon } from "../../parts/icons";
import * as lab from "./state";

const NAMES: Record<string, string> = {
  model: "Model",
  logit_bias: "Logit bias",
  penalties: "Penalties",
  masks: "Masks",
  constraint: "Constraint",
  temperature: "Temperature",
  top_k: "Top-k",
  top_p: "Top-p",
  min_p: "Min-p",
  typical_p: "Typical-p",
};

export function Lab() {
  useEffect(lab.follow, []);
  const take = (): void => {
    const now = lab.answer.value;
    if (now?.drawn && lab.settled()) lab.choose(now.drawn.id);
  };
  const back = (): void => lab.backTo(lab.forced.value.length - 1);
  useShortcuts("Sampling lab", [
    { keys: "ArrowRight", label: "Accept the sampled token", run: take },
    { keys: "ArrowLeft", label: "Back one token", run: back },
    { keys: "r", label: "Resample with the next seed", run: () => (lab.seed.value += 1) },
  ]);
  const now = lab.answer.value;
  return (
    <>
      <PageHeader title="Sampling lab" terms="lab" lead="Next-token probabilities of the model, and after each stage of the sampler." />
      <div class="lab">
        <div class="stack">
          <Prompt />
          {lab.problem.value && <Problem message={lab.problem.value} />}
          {now ? <Path now={now} take={take} back={back} /> : !lab.problem.value && <Empty icon="lab" title={lab.prompt.value ? "Computing…" : "Enter a prompt"} />}
          {now && <Matrix now={now} />}
        </div>
        <Sliders />
      </div>
    </>
  );
}

function Prompt() {
  return (
    <Card
      title="Prompt"
      aside={
        <Segmented
          label="Prompt as"
          value={lab.chat.value ? "chat" : "text"}
          options={[
            ["text", "Plain text"],
            ["chat", "Chat message"],
          ]}
          onChange={(kind) => {
            lab.backTo(0);
            lab.chat.value = kind === "chat";
          }}
        />
      }
    >
      <textarea
        rows={2}
        aria-label="Prompt"
        dir="auto"
        value={lab.prompt.value}
        onInput={(event) => lab.setPrompt(event.currentTarget.value)}
      />
      <ConstraintField />
    </Card>
  );
}

/** The constraint on the output (response_format). */
function ConstraintField() {
  const { source } = lab.CONSTRAINTS[lab.constraint.value] ?? {};
  return (
    <div class="constraint-field">
      <Field label="Constraint">
        {(id) => (
          <select id={id} value={lab.constraint.value} onChange={(event) => lab.setConstraint(event.currentTarget.value)}>
            {Object.entries(lab.CONSTRAINTS).map(([name, { label }]) => (
              <option key={name} value={name}>
                {label}
              </option>
            ))}
          </select>
        )}
      </Field>
      {source && (
        <Field label={source}>
          {(id) => (
            <textarea
              id={id}
              class="mono"
              rows={2}
              spellcheck={false}
              value={lab.source.value}
              onInput={(event) => {
                lab.backTo(0);
                lab.source.value = event.currentTarget.value;
              }}
            />
          )}
        </Field>
      )}
    </div>
  );
}

/** The tokens accepted so far; a click on one goes back to it. */
function Path({ now, take, back }: { now: LabAnswer; take: () => void; back: () => void }) {
  const { drawn } = now;
  const ends = drawn && (now.finish === "complete" || now.end_tokens.includes(drawn.id));
  return (
    <Card
      title="Context"
      aside={
        <span>
          {count(now.position)} tokens, {count(now.cached_tokens)} cached, {duration(now.us)}
        </span>
      }
    >
      <p class="path mono" dir="auto">
        {now.prompt.map((token, place) => (
          <span key={place} class="past">
            {token.text}
          </span>
        ))}
        {now.forced.map((token, place) => (
          <button type="button" key={place} class="step" title="Go back to this token" onClick={() => lab.backTo(place)}>
            {visible(token.text)}
          </button>
        ))}
        {drawn && (
          <span class="drawn" data-drawn={drawn.id}>
            {visible(drawn.text)}
          </span>
        )}
      </p>
      <div class="row">
        {drawn ? (
          <Button kind="primary" icon="right" disabled={!lab.settled()} onClick={take}>
            Accept “{visible(drawn.text)}”{ends ? " (end of output)" : ""}
          </Button>
        ) : (
          <strong class="over">{now.finish === "complete" ? "The constrained output is complete." : "Dead end: the constraint allows no next token."}</strong>
        )}
        <Button icon="left" disabled={!lab.forced.value.length} onClick={back}>
          Back
        </Button>
        <Button icon="redo" onClick={() => (lab.seed.value += 1)}>
          Resample
        </Button>
        <span class="small muted">or select another token below</span>
      </div>
    </Card>
  );
}

function Matrix({ now }: { now: LabAnswer }) {
  const stages = now.stages.filter((stage) => stage.on || stage.name === "model");
  const off = now.stages.filter((stage) => !stage.on && stage.name !== "model").map((stage) => NAMES[stage.name] ?? stage.name);
  const most = Math.max(1e-9, ...stages.flatMap((stage) => stage.probs));
  const last = stages.at(-1);
  const kept = (place: number): boolean => (last?.probs[place] ?? 0) > 0;
  const order = now.tokens.map((_, place) => place).sort((a, b) => Number(kept(b)) - Number(kept(a)) || a - b); // survivors first
  const out = order.filter((place) => !kept(place)).length;
  return (
    <Card title="From logits to the sampled token" aside={<Busy />} note={off.length ? `Off: ${off.join(", ")}.` : undefined}>
      <dl class="stats">
        <Stat name="Entropy" value={`${last?.entropy_bits.toFixed(2)} bits`} detail={`${stages[0]?.entropy_bits.toFixed(2)} before sampling parameters`} />
        <Stat name="Candidate tokens" value={count(last?.kept)} detail={`of ${count(now.vocab_size)}`} />
        <Stat name="Sampled" value={<span class="mono">{now.drawn ? visible(now.drawn.text) : "none"}</span>} detail={`seed ${lab.seed.value}`} />
      </dl>
      <Table label="Probabilities after each stage" class="matrix" style={{ minWidth: `${178 + 94 * stages.length}px` }}>
        <colgroup>
          <col class="token" />
          <col class="logit" />
        </colgroup>
        <thead>
          <tr>
            <th scope="col">Token</th>
            <th scope="col" class="num">
              Logit
            </th>
            {stages.map((stage) => (
              <Head key={stage.name} stage={stage} />
            ))}
          </tr>
        </thead>
        <tbody>
          {order.map((place, row) => ({ token: now.tokens[place]!, place, row })).map(({ token, place, row }) => (
            <tr key={token.id} data-first-out={out > 0 && row === order.length - out} data-token={token.id} data-drawn={token.id === now.drawn?.id} data-out={last?.probs[place] === 0}>
              <th scope="row">
                <button type="button" class="choose mono" title={`Continue with token ${token.id}`} onClick={() => lab.choose(token.id)}>
                  {visible(token.text)}
                  {token.id === now.drawn?.id && <Icon name="check" size={13} />}
                </button>
              </th>
              <td class="num muted">{token.logit.toFixed(2)}</td>
              {stages.map((stage) => (
                <Cell key={stage.name} stage={stage.name} prob={stage.probs[place] ?? 0} most={most} />
              ))}
            </tr>
          ))}
        </tbody>
      </Table>
    </Card>
  );
}

/** Shown while an answer is on its way; the last one stays until then. */
function Busy() {
  return (
    <span role="status" class="busy">
      {lab.busy.value ? "Computing…" : ""}
    </span>
  );
}

function Head({ stage }: { stage: LabStage }) {
  return (
    <th scope="col" data-stage={stage.name} data-kept={stage.kept} data-entropy={stage.entropy_bits}>
      {NAMES[stage.name] ?? stage.name}
      <small>{count(stage.kept)} kept</small>
      <small>{stage.entropy_bits.toFixed(2)} bits</small>
    </th>
  );
}

function Cell({ stage, prob, most }: { stage: string; prob: number; most: number }) {
  return (
    <td data-stage={stage} data-prob={prob}>
      {prob > 0 ? (
        <span class="bar-cell">
          <i style={{ width: `${(prob / most) * 100}%` }} />
          <b>{percent(prob)}</b>
        </span>
      ) : (
        <span class="muted">out</span>
      )}
    </td>
  );
}

function Sliders() {
  return (
    <Card title="Sampler" class="sliders">
      <div class="params">
        {lab.PARAMS.map(({ name, label, min, max, step, off }) => {
          const value = lab.values.value[name] ?? off;
          const id = `lab-${name}`;
          return (
            <div class="parameter" key={name} data-set={value !== off}>
              <div class="head">
                <label for={id}>{label}</label>
                {value !== off && <Button icon="close" kind="quiet" label={`${label}: off`} onClick={() => lab.setParam(name, off)} />}
                <output for={id}>{value === off && name !== "temperature" ? "off" : value}</output>
              </div>
              <input
                id={id}
                type="range"
                min={min}
                max={max}
                step={step}
                value={value}
                onInput={(event) => lab.setParam(name, Number(event.currentTarget.value))}
              />
            </div>
          );
        })}
        <Field label="Seed" hint="The noise depends only on seed, position and token.">
          {(id) => (
            <input
              id={id}
              type="number"
              min={0}
              value={lab.seed.value}
              onChange={(event) => (lab.seed.value = Math.max(0, Math.floor(Number(event.currentTarget.value) || 0)))}
            />
          )}
        </Field>
      </div>
    </Card>
  );
}
