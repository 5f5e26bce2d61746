/** Block map: one square per KV block (page), in memory order. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { CacheMap } from "../../lib/api";
import { count } from "../../lib/format";
import { Card, Segmented } from "../../parts/basics";
import { ink, useCanvas } from "../../parts/canvas";
import { Tip, TipRows } from "../../parts/tip";

type Group = CacheMap["groups"][number];

const FREE = 0;
const HELD = 1;
const SHARED = 2;
const STATES = [
  ["free", "Free"],
  ["decode", "In use"],
  ["shared", "Shared"],
  ["cached", "Cached"],
  ["wait", "Resting"],
] as const;
const INKS = ["c-free", "c-decode", "c-shared", "c-cached", "c-wait"];
const TALLEST = 420;
const LEAST_TAIL = 512; // free blocks at the end that are folded
const SHOWN_TAIL = 128;

/** Hue of a sequence: consecutive numbers get distant hues. */
export const hue = (seq: number): number => Math.round((seq * 137.508) % 360);

interface Grid {
  side: number;
  columns: number;
  height: number;
}

function gridOf(cells: number, width: number): Grid {
  let side = 14;
  while (side > 2 && Math.ceil(cells / Math.floor(width / side)) * side > TALLEST) side -= 1;
  const columns = Math.max(1, Math.floor(width / side));
  const exact = side > 4 ? width / columns : side; // fill the width
  return { side: exact, columns, height: Math.ceil(Math.ceil(cells / columns) * exact) };
}

export function PageMap({
  group,
  sequences,
  blockSize,
  title,
}: {
  group: Group;
  sequences: CacheMap["sequences"];
  blockSize: number;
  title: string;
}) {
  const [by, setBy] = useState<"state" | "request">("state");
  const [hover, setHover] = useState<{ x: number; y: number; cell: number; state: number; seq: number } | null>(null);
  const grid = useRef<Grid>({ side: 14, columns: 1, height: 14 });
  const [whole, setWhole] = useState(false);
  const all = group.runs.reduce((sum, [length]) => sum + length, 0);
  const tail = group.runs.at(-1)?.[1] === FREE ? group.runs.at(-1)![0] : 0; // free blocks at the end, not drawn
  const hidden = whole || tail < LEAST_TAIL ? 0 : tail - SHOWN_TAIL;
  const cells = all - hidden;
  const counts = STATES.map((_, state) => group.runs.reduce((all, [length, own]) => all + (own === state ? length : 0), 0) * group.cell_blocks);

  const drawn = hidden ? [...group.runs.slice(0, -1), [SHOWN_TAIL, FREE, 0] as const] : group.runs;
  const { ref, redraw } = useCanvas((context, width) => {
    const { side, columns, height } = (grid.current = gridOf(cells, width));
    if (ref.current && ref.current.style.height !== `${height}px`) ref.current.style.height = `${height}px`;
    const gap = side > 4 ? 1 : side > 2 ? 0.5 : 0;
    let at = 0;
    for (const [length, state, seq] of drawn) {
      context.fillStyle =
        by === "request" && (state === HELD || state === SHARED) && seq ? `hsl(${hue(seq)} 48% 52%)` : ink(INKS[state] ?? "c-free");
      context.globalAlpha = hover?.seq && hover.seq !== seq && state !== FREE ? 0.3 : 1;
      for (let left = length; left > 0; ) {
        const column = at % columns;
        const run = Math.min(left, columns - column);
        const top = Math.round(Math.floor(at / columns) * side);
        const high = Math.round((Math.floor(at / columns) + 1) * side) - top - gap;
        if (gap)
          for (let one = column; one < column + run; one++) {
            const left = Math.round(one * side);
            context.fillRect(left, top, Math.round((one + 1) * side) - left - gap, high);
          }
        else context.fillRect(column * side, top, run * side, side);
        at += run;
        left -= run;
      }
    }
    context.globalAlpha = 1;
  });
  useEffect(redraw, [group, by, whole, hover?.seq]);
  const point = (event: PointerEvent): void => {
    const { side, columns } = grid.current;
    const cell = Math.floor(event.offsetY / side) * columns + Math.floor(event.offsetX / side);
    let at = 0;
    for (const [length, state, seq] of drawn) {
      if (cell < at + length && Math.floor(event.offsetX / side) < columns)
        return setHover({ x: event.clientX, y: event.clientY, cell, state, seq });
      at += length;
    }
    setHover(null);
  };
  const owner = hover?.seq ? sequences[String(hover.seq)] : undefined;
  const size = group.cell_blocks;
  return (
    <Card
      title={title}
      aside={
        <Segmented
          label="Colour"
          value={by}
          options={[
            ["state", "By state"],
            ["request", "By request"],
          ]}
          onChange={setBy}
        />
      }
      note={`Each square is ${size === 1 ? "one block" : `${size} blocks`} of ${count(blockSize * size)} tokens. Shared: used by several sequences. Cached: unused, kept for prefix hits until evicted.`}
    >
      <canvas
        class="page-map"
        ref={ref}
        role="img"
        aria-label={`Block map: ${STATES.map(([, name], state) => `${count(counts[state])} ${name.toLowerCase()}`).join(", ")}`}
        onPointerMove={point}
        onPointerLeave={() => setHover(null)}
      />
      {tail >= LEAST_TAIL && (
        <p class="small">
          <button type="button" class="link" aria-expanded={whole} onClick={() => setWhole(!whole)}>
            {whole ? "Fold the free blocks at the end" : `${count(hidden * size)} more free blocks`}
          </button>
        </p>
      )}
      <ul class="legend">
        {by === "request" && (
          <li>
            <i class="hues" /> In use: one colour per request
          </li>
        )}
        {STATES.map(([colour, name], state) => (
          <li key={name} hidden={by === "request" && (colour === "decode" || colour === "shared")} data-state={name.toLowerCase().replace(" ", "-")} data-count={counts[state]}>
            <i data-colour={colour} />
            {name} <b>{count(counts[state])}</b>
          </li>
        ))}
      </ul>
      {hover && (
        <Tip x={hover.x} y={hover.y}>
          <TipRows
            title={size === 1 ? `Block ${hover.cell}` : `Blocks ${hover.cell * size}–${hover.cell * size + size - 1}`}
            rows={[
              ["state", STATES[hover.state]?.[1] ?? ""],
              ...(owner
                ? ([
                    ["request", `#${owner.request}`],
                    ["holds", `${count(owner.blocks)} blocks, ${count(owner.tokens)} tokens`],
                  ] as const)
                : []),
            ]}
          />
        </Tip>
      )}
    </Card>
  );
}
