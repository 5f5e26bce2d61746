/** Batch size over all recorded steps, with the window that the timeline shows. */
import { useEffect, useRef } from "preact/hooks";
import type { StepWindow } from "../../lib/api";
import { count } from "../../lib/format";
import { usePolling } from "../../lib/frames";
import { fetchJson } from "../../lib/http";
import { ofSource } from "../../lib/source";
import type { Viewport } from "../../lib/viewport";
import { ink, useCanvas } from "../../parts/canvas";

export function Overview({
  kept,
  view,
  onMove,
  redrawKey,
}: {
  kept: { first: number; last: number };
  view: Viewport;
  onMove: (step: number) => void;
  redrawKey: unknown;
}) {
  const steps = useRef<StepWindow["steps"] | null>(null);
  const span = Math.max(1, kept.last - kept.first + 1);
  const { ref, redraw } = useCanvas((context, width, height) => {
    const x = (step: number): number => ((step - kept.first) / span) * width;
    const known = steps.current;
    if (known) {
      const top = Math.max(1, ...known.rows);
      const stride = (known.number[1] ?? 1) - (known.number[0] ?? 0);
      context.fillStyle = ink("c-decode");
      context.globalAlpha = 0.55;
      known.number.forEach((number, place) => {
        const high = (known.rows[place]! / top) * (height - 4);
        const next = known.number[place + 1] ?? number + stride;
        context.fillRect(x(number), height - high, Math.max(0.75, x(next) - x(number)), high);
      });
      context.globalAlpha = 1;
    }
    const from = x(Math.max(view.from, kept.first));
    const to = x(Math.min(view.to, kept.last + 1));
    context.fillStyle = ink("accent");
    context.globalAlpha = 0.18;
    context.fillRect(from, 0, Math.max(2, to - from), height);
    context.globalAlpha = 1;
    context.strokeStyle = ink("accent");
    context.strokeRect(from + 0.5, 0.5, Math.max(2, to - from) - 1, height - 1);
  });
  usePolling(async (signal) => {
    if (!kept.last) return;
    const window = await fetchJson<StepWindow>(ofSource(`/observe/steps?from=${kept.first}&to=${kept.last}&columns=600&rows=0`), { signal });
    steps.current = window.steps;
    redraw();
  }, 2000, [kept.last > 0]);
  useEffect(redraw, [kept.last, redrawKey, view.from, view.to]);
  const at = (event: PointerEvent): void => {
    const canvas = ref.current;
    if (canvas && event.buttons & 1) onMove(kept.first + (event.offsetX / canvas.clientWidth) * span);
  };
  if (!kept.last) return <canvas ref={ref} hidden />;
  return (
    <figure class="overview">
      <canvas ref={ref} role="img" aria-label="Overview of all recorded steps" onPointerDown={at} onPointerMove={at} />
      <figcaption class="small muted">
        {count(span)} steps recorded, #{kept.first} to #{kept.last}; click to jump
      </figcaption>
    </figure>
  );
}
