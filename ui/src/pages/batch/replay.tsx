/** Static vs. continuous batching, computed from the same recorded requests. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Replay, ReplayRun } from "../../lib/api";
import { count, duration, percent } from "../../lib/format";
import { fetchJson, errorMessage } from "../../lib/http";
import { ofSource } from "../../lib/source";
import { Button, Card, Computed, Empty, Legend, Problem, Segmented } from "../../parts/basics";
import { font, ink, ticks, useCanvas } from "../../parts/canvas";

const LANE = 16;
const AXIS = 20;
const SIZES = ["4", "8", "16"] as const;
const SWEEP_MS = 6000;

export function ReplayCard() {
  const replay = useSignal<Replay | null>(null);
  const problem = useSignal("");
  const size = useSignal<string>("8");
  const played = useSignal(1); // share of the time that is shown
  const frame = useRef(0);
  const load = async (): Promise<void> => {
    try {
      replay.value = await fetchJson<Replay>(ofSource(`/observe/replay?limit=64&batch=${size.value}`));
      problem.value = "";
    } catch (error) {
      problem.value = errorMessage(error);
    }
  };
  useEffect(() => {
    void load();
  }, [size.value]);
  useEffect(() => () => cancelAnimationFrame(frame.current), []);
  const play = (): void => {
    cancelAnimationFrame(frame.current);
    const begun = performance.now();
    const turn = (now: number): void => {
      played.value = Math.min(1, (now - begun) / SWEEP_MS);
      if (played.value < 1) frame.current = requestAnimationFrame(turn);
    };
    frame.current = requestAnimationFrame(turn);
  };
  const now = replay.value;
  const both = now?.static && now.continuous ? { fixed: now.static, moving: now.continuous } : null;
  return (
    <Card
      title="Static vs. continuous batching"
      aside={
        <>
          <Computed what="Computed replay" />
          <Segmented
            label="Batch size"
            value={size.value}
            options={SIZES.map((one) => [one, `${one} slots`] as const)}
            onChange={(one) => (size.value = one)}
          />
          <Button icon="redo" kind="quiet" label="Reload with the latest requests" onClick={() => void load()} />
          <Button icon="play" disabled={!both} onClick={play}>
            Play
          </Button>
        </>
      }
      note={now?.note}
    >
      {problem.value && <Problem message={problem.value} onRetry={() => void load()} />}
      {now && !both && (
        <Empty icon="batch" title="Nothing to replay yet">
          The replay uses the latest finished requests.
        </Empty>
      )}
      {both && now && (
        <div class="stack">
          <p class="gain">
            <b>{(both.fixed.makespan_us / both.moving.makespan_us).toFixed(2)}×</b> speed-up by continuous batching: {count(now.requests.length)} requests in{" "}
            {duration(both.moving.makespan_us)} instead of {duration(both.fixed.makespan_us)}.
          </p>
          <Run name="Static" run={both.fixed} other={both.moving} lanes={now.batch} played={played.value} />
          <Run name="Continuous" run={both.moving} other={both.fixed} lanes={now.batch} played={played.value} />
          <Legend
            entries={[
              ["prefill", "Prefill"],
              ["decode", "Decode"],
              ["free", "Idle slot"],
            ]}
          />
        </div>
      )}
    </Card>
  );
}

function Run({ name, run, other, lanes, played }: { name: string; run: ReplayRun; other: ReplayRun; lanes: number; played: number }) {
  const most = Math.max(run.makespan_us, other.makespan_us, 1);
  const { ref, redraw } = useCanvas((context, width, height) => {
    const x = (t: number): number => (t / most) * width;
    context.font = font(13);
    context.textBaseline = "middle";
    for (const tick of ticks(0, most, width / 130)) {
      const at = x(tick);
      context.fillStyle = ink("line");
      context.fillRect(Math.round(at), 0, 1, height - AXIS + 4);
      context.fillStyle = ink("text-3");
      context.textAlign = at < 20 ? "left" : at > width - 30 ? "right" : "center";
      context.fillText(duration(tick), at, height - 7);
    }
    const until = most * played;
    const bar = (from: number, to: number, lane: number, colour: string): void => {
      const right = Math.min(to, until);
      if (right <= from) return;
      context.fillStyle = ink(colour);
      context.fillRect(x(from), lane * LANE + 2, Math.max(0.75, x(right) - x(from) - 0.5), LANE - 4);
    };
    for (const row of run.rows) {
      bar(row.end, row.released, row.lane, "c-free");
      bar(row.start, row.prefill_end, row.lane, "c-prefill");
      bar(row.prefill_end, row.end, row.lane, "c-decode");
    }
    if (played < 1) {
      context.fillStyle = ink("text");
      context.fillRect(x(until), 0, 1, height - AXIS);
    }
  });
  useEffect(redraw, [run, played]);
  return (
    <figure class="replay-run" data-run={name.toLowerCase()}>
      <figcaption>
        <b>{name}</b>
        <span>{run.tokens_per_s.toFixed(1)} tok/s</span>
        <span>mean latency {duration(run.latency_us_mean)}</span>
        <span>mean TTFT {duration(run.ttft_us_mean)}</span>
        <span>slot utilization {percent(run.utilisation, 0)}</span>
      </figcaption>
      <canvas
        ref={ref}
        style={{ height: `${lanes * LANE + AXIS}px` }}
        role="img"
        aria-label={`${name} batching: ${lanes} slots over ${duration(run.makespan_us)}`}
      />
    </figure>
  );
}
