/** Scheduling by animation frames: at most once per frame, queued, or polled. */
import { useEffect, useRef } from "preact/hooks";

export function perFrame(work: () => void): (() => void) & { cancel(): void } {
  let frame = 0;
  const ask = (): void => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      work();
    });
  };
  ask.cancel = (): void => {
    cancelAnimationFrame(frame);
    frame = 0;
  };
  return ask;
}

const queue: (() => void)[] = [];

/** Runs `work` in one of the next frames, one per frame: for expensive set-up of several components. */
export function inTurn(work: () => void): () => void {
  if (queue.push(work) === 1) requestAnimationFrame(next);
  return () => {
    const place = queue.indexOf(work);
    if (place > 0) queue.splice(place, 1);
    else if (place === 0) queue[0] = () => undefined;
  };
}

function next(): void {
  queue[0]?.();
  queue.shift();
  if (queue.length) requestAnimationFrame(next);
}

/** Calls `work` every `everyMs` while the component is shown and the page is visible, first at once. */
export function usePolling(work: (abort: AbortSignal) => Promise<void>, everyMs: number, keys: unknown[] = []): void {
  const latest = useRef(work);
  latest.current = work;
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const turn = async (): Promise<void> => {
      if (!document.hidden) await latest.current(abort.signal).catch(() => undefined);
      if (!abort.signal.aborted) timer = window.setTimeout(() => void turn(), everyMs);
    };
    void turn();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [everyMs, ...keys]);
}
