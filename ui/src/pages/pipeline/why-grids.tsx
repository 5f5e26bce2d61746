/** Which step computes which token of a prompt, and what a tensor core does with a tile. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { count, short } from "../../lib/format";
import { facts } from "../../lib/live";
import { Button, Card, Computed, Field, Legend } from "../../parts/basics";
import type { Presets } from "../planner/api";
import { ink, useCanvas } from "../../parts/canvas";

const OUTPUT = 6; // steps that decode, behind the prompt

/** Rows are steps, columns are tokens: chunks of step_tokens, then one token per step. */
export function PrefillGrid() {
  const budget = facts.value?.engine.step_tokens ?? 512;
  const block = facts.value?.engine.block_size ?? 16;
  const prompt = useSignal(2 * budget + Math.floor(budget / 2));
  const cached = useSignal(block * 4);
  const found = Math.min(Math.floor(cached.value / block) * block, prompt.value - 1);
  const chunks = Math.ceil((prompt.value - found) / budget);
  const steps = chunks + OUTPUT;
  const total = prompt.value + OUTPUT;
  const { ref, redraw } = useCanvas((context, width, height) => {
    const [unit, high] = [width / total, height / steps];
    const bar = (step: number, from: number, to: number, colour: string): void => {
      context.fillStyle = ink(colour);
      context.fillRect(from * unit, step * high, Math.max((to - from) * unit, 2), high - 1);
    };
    for (let step = 0; step < steps; step += 1) {
      const start = step < chunks ? found + step * budget : prompt.value + step - chunks;
      const end = step < chunks ? Math.min(prompt.value, start + budget) : start + 1;
      bar(step, 0, found, "c-cached");
      bar(step, found, start, "c-free");
      bar(step, start, end, step < chunks ? "c-prefill" : "c-decode");
    }
  });
  redraw();
  const slider = (label: string, value: { value: number }, max: number, step: number) => (
    <Field label={`${label}: ${count(value.value)}`}>
      {(id) => <input id={id} type="range" class="wide" min={0} max={max} step={step} value={value.value} onInput={(event) => (value.value = Math.max(1, Number(event.currentTarget.value)))} />}
    </Field>
  );
  return (
    <Card
      title="Prefill, token by token"
      aside={<Computed what="Computed from this engine’s settings" />}
      note={`Rows are steps, columns are tokens. A prompt is computed in chunks of step_tokens (${count(budget)}), so that running requests get their tokens in between; cached blocks are skipped; then each step adds one token.`}
    >
      <div class="why-pick">
        {slider("Prompt tokens", prompt, 4 * budget, block)}
        {slider("Of those cached", cached, 4 * budget, block)}
      </div>
      <canvas ref={ref} class="why-grid" role="img" aria-label={`${chunks} prefill steps for ${prompt.value - found} tokens, ${found} cached, then ${OUTPUT} decode steps of one token`} />
      <Legend entries={[["cached", "found in the cache"], ["prefill", "computed in this step"], ["free", "in the KV cache already"], ["decode", "new token"]]} />
      <p>
        {count(chunks)} prefill {chunks === 1 ? "step" : "steps"}, {count(prompt.value - found)} tokens computed.
      </p>
    </Card>
  );
}

const SIDE = 4; // of the drawn tile
const TURN_MS = 700;
// NVIDIA's mma.sync of 16-bit numbers: a warp multiplies 16 × 16 by 16 × 8 and adds.
const [M, N, K] = [16, 8, 16];
const FLOP = 2 * M * N * K;

/** D = A × B + C on a tile, one slice of K at a time. */
export function TensorTile({ presets }: { presets: Presets }) {
  const slice = useSignal(0);
  const playing = useSignal(false);
  useEffect(() => {
    if (!playing.value) return;
    const timer = setInterval(() => (slice.value = (slice.value + 1) % (SIDE + 1)), TURN_MS);
    return () => clearInterval(timer);
  }, [playing.value]);
  const cards = presets.hardware.filter(({ link_bytes_s, name }) => link_bytes_s || name.startsWith("rtx")).slice(0, 6);
  const tile = (name: string, lit: (row: number, column: number) => number) => (
    <div class="why-tile">
      <b>{name}</b>
      <div>
        {Array.from({ length: SIDE * SIDE }, (_, at) => (
          <i key={at} style={{ opacity: 0.15 + 0.85 * lit(Math.floor(at / SIDE), at % SIDE) }} />
        ))}
      </div>
    </div>
  );
  return (
    <Card
      title="What a tensor core does with a tile"
      aside={
        <Button icon={playing.value ? "pause" : "play"} onClick={() => (playing.value = !playing.value)}>
          {playing.value ? "Pause" : "Play"}
        </Button>
      }
      note={`It multiplies small matrices instead of numbers: each loaded value is used in a whole row or column of products. One instruction of a warp takes tiles of ${M} × ${K} and ${K} × ${N}: ${count(FLOP)} FLOP. Drawn smaller, slice by slice.`}
    >
      <div class="why-tiles" role="img" aria-label={`Slice ${Math.min(slice.value, SIDE)} of ${SIDE}: a column of A times a row of B is added to all of D`}>
        {tile("A", (_, column) => (column === slice.value ? 1 : column < slice.value ? 0.4 : 0))}
        <span>×</span>
        {tile("B", (row) => (row === slice.value ? 1 : row < slice.value ? 0.4 : 0))}
        <span>→</span>
        {tile("D", () => Math.min(1, slice.value / SIDE))}
      </div>
      <div class="row">
        <Button icon="left" label="Previous slice" disabled={slice.value === 0} onClick={() => (slice.value -= 1)} />
        <Button icon="right" label="Next slice" disabled={slice.value === SIDE} onClick={() => (slice.value += 1)} />
        <span>
          {slice.value} of {SIDE} slices: {count(2 * SIDE * SIDE * slice.value)} of {count(2 * SIDE * SIDE * SIDE)} FLOP
        </span>
      </div>
      <ul class="follow-list">
        {cards.map(({ name, label, flops, bandwidth_bytes_s }) => (
          <li key={name}>
            <b>{label}</b>
            <span class="muted">
              {short(flops)}FLOP/s (16 bits), {short(bandwidth_bytes_s)}B/s; computed: {short(flops / FLOP)} tiles/s, balanced at {short(flops / bandwidth_bytes_s)} FLOP per byte
            </span>
          </li>
        ))}
      </ul>
    </Card>
  );
}
