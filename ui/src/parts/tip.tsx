/** Tooltip beside the pointer. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

export function Tip({ x, y, children }: { x: number; y: number; children: ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const left = x + 14 + element.offsetWidth > innerWidth - 8 ? x - 14 - element.offsetWidth : x + 14;
    element.style.left = `${Math.max(8, left)}px`;
    element.style.top = `${Math.max(8, Math.min(y + 14, innerHeight - element.offsetHeight - 8))}px`;
  });
  return (
    <div class="popover tip" ref={box} role="tooltip">
      {children}
    </div>
  );
}

export function TipRows({ title, rows }: { title: ComponentChildren; rows: (readonly [string, ComponentChildren])[] }) {
  return (
    <>
      <b>{title}</b>
      <dl>
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}
