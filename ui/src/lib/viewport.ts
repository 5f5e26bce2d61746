/** The part of an axis that is on screen, and how pointer and wheel move it. */
import { useEffect, useRef } from "preact/hooks";

export class Viewport {
  from = 0;
  to = 1;
  constructor(
    public min = 0,
    public max = 1,
    public least = 1, // narrowest span
  ) {
    this.fit();
  }

  get span(): number {
    return this.to - this.from;
  }

  fit(): void {
    this.show(this.min, this.max);
  }

  show(from: number, to: number): void {
    const span = Math.min(Math.max(to - from, this.least), Math.max(this.max - this.min, this.least));
    const start = Math.max(this.min, Math.min(from, this.max - span));
    this.from = start;
    this.to = start + span;
  }

  /** `at`: 0 is the left edge, 1 the right one; what is there stays there. */
  zoom(factor: number, at = 0.5): void {
    const anchor = this.from + at * this.span;
    const span = Math.min(Math.max(this.span * factor, this.least), Math.max(this.max - this.min, this.least));
    this.show(anchor - at * span, anchor + (1 - at) * span);
  }

  pan(by: number): void {
    this.show(this.from + by, this.to + by);
  }
}

/** Drag pans, Ctrl with the wheel (or a pinch) zooms, a sideways wheel pans. `inset`: where the axis begins, in pixels. */
export function useViewportPointer(
  ref: { current: HTMLElement | null },
  view: Viewport,
  inset: number,
  onChange: () => void,
): void {
  const latest = useRef(onChange);
  latest.current = onChange;
  useEffect(() => {
    const element = ref.current;
    if (!element) return;
    const changed = (): void => latest.current();
    const width = (): number => Math.max(1, element.clientWidth - inset);
    let dragged: number | null = null;
    const wheel = (event: WheelEvent): void => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : event.shiftKey ? event.deltaY : 0;
      if (event.ctrlKey || event.metaKey)
        view.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.01), (event.offsetX - inset) / width());
      else if (sideways) view.pan((sideways / width()) * view.span);
      else return;
      event.preventDefault();
      changed();
    };
    const down = (event: PointerEvent): void => {
      if (event.button !== 0) return;
      dragged = event.clientX;
      element.setPointerCapture(event.pointerId);
    };
    const move = (event: PointerEvent): void => {
      if (dragged === null) return;
      view.pan(((dragged - event.clientX) / width()) * view.span);
      dragged = event.clientX;
      changed();
    };
    const up = (): void => {
      dragged = null;
    };
    const fit = (): void => {
      view.fit();
      changed();
    };
    element.addEventListener("wheel", wheel, { passive: false });
    element.addEventListener("pointerdown", down);
    element.addEventListener("pointermove", move);
    element.addEventListener("pointerup", up);
    element.addEventListener("pointercancel", up);
    element.addEventListener("dblclick", fit);
    return () => {
      element.removeEventListener("wheel", wheel);
      element.removeEventListener("pointerdown", down);
      element.removeEventListener("pointermove", move);
      element.removeEventListener("pointerup", up);
      element.removeEventListener("pointercancel", up);
      element.removeEventListener("dblclick", fit);
    };
  }, [view]);
}
