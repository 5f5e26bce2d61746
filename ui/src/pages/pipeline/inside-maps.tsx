/** Heat maps: the residual stream over layers, and the attention of one head. */
import { useSignal } from "@preact/signals";
import { percent, short, visible } from "../../lib/format";
import { Card } from "../../parts/basics";
import { font, ink, useCanvas } from "../../parts/canvas";
import { Tip, TipRows } from "../../parts/tip";
import type { ModelTrace } from "./inside-state";

const LEFT = 84;
const TOP = 18;

interface Hover {
  x: number;
  y: number;
  row: number;
  column: number;
}

/** A canvas of cells with labels, and the cell under the pointer. */
function HeatMap({
  rows,
  columns,
  height,
  label,
  rowName,
  columnName,
  paint,
  tip,
}: {
  rows: number;
  columns: number;
  height: number;
  label: string;
  rowName: (row: number) => string;
  columnName?: (column: number) => string;
  /** The colour and its strength from 0 to 1. */
  paint: (row: number, column: number) => readonly [string, number];
  tip: (row: number, column: number) => readonly [string, (readonly [string, string])[]];
}) {
  const hover = useSignal<Hover | null>(null);
  const { ref, redraw } = useCanvas((context, width) => {
    const [wide, high] = [(width - LEFT) / columns, (height - TOP) / rows];
    for (let row = 0; row < rows; row += 1)
      for (let column = 0; column < columns; column += 1) {
        const [colour, strength] = paint(row, column);
        context.globalAlpha = Math.max(0.04, Math.min(1, strength));
        context.fillStyle = ink(colour);
        context.fillRect(LEFT + column * wide, TOP + row * high, wide - (wide > 6 ? 1 : 0), high - (high > 6 ? 1 : 0));
      }
    context.globalAlpha = 1;
    context.font = font(12);
    context.fillStyle = ink("text-2");
    context.textBaseline = "middle";
    const every = Math.ceil(15 / high);
    for (let row = 0; row < rows; row += every) context.fillText(rowName(row), 0, TOP + (row + 0.5) * high, LEFT - 8);
    if (columnName) for (let column = 0; column < columns; column += Math.ceil(44 / wide)) context.fillText(columnName(column), LEFT + column * wide, 8, Math.max(wide, 44));
  });
  redraw();
  const find = (event: PointerEvent): void => {
    const width = ref.current?.clientWidth ?? 0;
    const row = Math.floor(((event.offsetY - TOP) / (height - TOP)) * rows);
    const column = Math.floor(((event.offsetX - LEFT) / (width - LEFT)) * columns);
    const inside = row >= 0 && row < rows && column >= 0 && column < columns;
    hover.value = inside ? { x: event.clientX, y: event.clientY, row, column } : null;
  };
  const at = hover.value;
  return (
    <>
      <canvas ref={ref} style={{ width: "100%", height: `${height}px` }} role="img" aria-label={label} onPointerMove={find} onPointerLeave={() => (hover.value = null)} />
      {at && at.row < rows && at.column < columns && (
        <Tip x={at.x} y={at.y}>
          <TipRows title={tip(at.row, at.column)[0]} rows={tip(at.row, at.column)[1]} />
        </Tip>
      )}
    </>
  );
}

export function Attention({ found, head }: { found: ModelTrace; head: number }) {
  const shares = found.attention[head] ?? [];
  const name = (place: number): string => visible(found.tokens[place]?.text ?? "");
  return (
    <div>
    <HeatMap
      rows={shares.length}
      columns={shares.length}
      height={TOP + Math.min(420, Math.max(120, shares.length * 22))}
      label={`Attention of layer ${found.layer + 1}, head ${head + 1}; the sentence below names what the chosen token looks at.`}
      rowName={name}
      columnName={name}
      paint={(row, column) => ["accent", Math.sqrt(shares[row]?.[column] ?? 0)]}
      tip={(row, column) => [
        percent(shares[row]?.[column]),
        [
          ["looks", name(row)],
          ["at", name(column)],
        ],
      ]}
    />
    </div>
  );
}

/** All heads of all layers: how widely each looks from the chosen token. */
export function HeadGrid({ found }: { found: ModelTrace }) {
  const most = Math.max(1e-9, ...found.entropy_bits.flat());
  return (
    <figure>
      <HeatMap
        rows={found.num_layers}
        columns={found.num_heads}
        height={TOP + Math.max(140, found.num_layers * 9)}
        label={`Entropy of the attention of ${found.num_heads} heads in ${found.num_layers} layers, at most ${most.toFixed(1)} bits.`}
        rowName={(row) => `layer ${row + 1}`}
        columnName={(column) => `${column + 1}`}
        paint={(row, column) => ["c-cached", (found.entropy_bits[row]?.[column] ?? 0) / most]}
        tip={(row, column) => [`layer ${row + 1}, head ${column + 1}`, [["entropy", `${found.entropy_bits[row]?.[column]?.toFixed(2)} bits`]]]}
      />
      <figcaption class="small muted">All heads at the chosen token: the darker, the more tokens a head looks at.</figcaption>
    </figure>
  );
}

export function Stream({ found }: { found: ModelTrace }) {
  const layers = found.norms.length;
  const layerName = (row: number): string => (row ? `layer ${row}` : "embedding");
  const most = Math.log(1 + Math.max(...found.norms.flat()));
  const scale = found.values.map((row) => Math.max(1e-9, ...row.map(Math.abs)));
  return (
    <Card
      title="Residual stream"
      note="Every token has a vector that starts as its embedding; each layer reads it and adds to it. Left, its length by layer and token (logarithmic). Right, the first 48 numbers of the chosen token, by layer: blue is positive, red negative."
    >
      <div class="inside-stream">
        <HeatMap
          rows={layers}
          columns={found.tokens.length}
          height={TOP + Math.max(160, layers * 9)}
          label={`Length of the residual stream of ${found.tokens.length} tokens over ${layers - 1} layers: from ${short(Math.min(...found.norms.flat()))} to ${short(Math.max(...found.norms.flat()))}.`}
          rowName={layerName}
          columnName={(column) => visible(found.tokens[column]?.text ?? "")}
          paint={(row, column) => ["c-prefill", Math.log(1 + (found.norms[row]?.[column] ?? 0)) / most]}
          tip={(row, column) => [
            layerName(row),
            [
              ["token", visible(found.tokens[column]?.text ?? "")],
              ["length", short(found.norms[row]?.[column])],
            ],
          ]}
        />
        <HeatMap
          rows={layers}
          columns={found.values[0]?.length ?? 1}
          height={TOP + Math.max(160, layers * 9)}
          label="The first 48 numbers of the chosen token's residual stream, by layer."
          rowName={layerName}
          paint={(row, column) => {
            const value = found.values[row]?.[column] ?? 0;
            return [value < 0 ? "c-preempted" : "c-prefill", Math.abs(value) / scale[row]!];
          }}
          tip={(row, column) => [layerName(row), [["number", String(column)], ["value", short(found.values[row]?.[column])]]]}
        />
      </div>
    </Card>
  );
}
