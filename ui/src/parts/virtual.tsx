/** A virtualized list: only visible rows are rendered. */
import type { ComponentChild } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { perFrame } from "../lib/frames";

const OVERSCAN = 6; // rows beyond each edge

export function VirtualList<T>({
  items,
  rowHeight,
  render,
  label,
  reveal,
  onScrollEnd,
}: {
  items: readonly T[];
  rowHeight: number;
  render: (item: T, index: number) => ComponentChild;
  label: string;
  /** Keep this row in view. */
  reveal?: number;
  onScrollEnd?: () => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = perFrame(() => {
      setView({ top: element.scrollTop, height: element.clientHeight });
      if (element.scrollTop + element.clientHeight > element.scrollHeight - 2 * rowHeight) onScrollEnd?.();
    });
    measure();
    element.addEventListener("scroll", measure, { passive: true });
    const sized = new ResizeObserver(measure);
    sized.observe(element);
    return () => {
      measure.cancel();
      sized.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);
  useEffect(() => {
    const element = box.current;
    if (!element || reveal === undefined || reveal < 0) return;
    const top = reveal * rowHeight;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = top + rowHeight - element.clientHeight;
  }, [reveal]);
  const from = Math.max(0, Math.floor(view.top / rowHeight) - OVERSCAN);
  const to = Math.min(items.length, Math.ceil((view.top + view.height) / rowHeight) + OVERSCAN);
  return (
    <div class="virtual" ref={box} role="region" aria-label={label} tabIndex={0}>
      <div class="sizer" style={{ height: `${items.length * rowHeight}px` }}>
        <div class="window" style={{ transform: `translateY(${from * rowHeight}px)` }}>
          {items.slice(from, to).map((item, place) => render(item, from + place))}
        </div>
      </div>
    </div>
  );
}
