/** The prefix tree, left to right: box width is the number of tokens; the tree branches where prompts diverge. */
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { TreeNode } from "../../lib/api";
import { count, seconds } from "../../lib/format";
import { usePolling } from "../../lib/frames";
import { fetchJson, errorMessage } from "../../lib/http";
import { ofSource } from "../../lib/source";
import { facts, requests, requestsVersion } from "../../lib/live";
import { Card, Empty, Legend, Problem, Table } from "../../parts/basics";
import { font, ink, useCanvas } from "../../parts/canvas";
import { Tip, TipRows } from "../../parts/tip";

const LEAF = 18;
const MOST_LEAVES = 400;
const TALLEST = 340; // pixels; a taller tree scrolls, and only the visible part is drawn
const COLOURS: Record<TreeNode["state"], string> = { held: "c-decode", cached: "c-cached", evicted: "c-output" };

interface TreeBox {
  node: TreeNode;
  from: number; // blocks
  to: number;
  top: number; // leaves
  leaves: number;
}

function layOut(nodes: TreeNode[]): { boxes: TreeBox[]; leaves: number; depth: number } {
  const children = new Map<string | null, TreeNode[]>();
  const known = new Set(nodes.map((node) => node.id));
  for (const node of nodes) {
    const parent = node.parent !== null && known.has(node.parent) ? node.parent : null;
    children.set(parent, [...(children.get(parent) ?? []), node]);
  }
  for (const list of children.values()) list.sort((a, b) => b.hits - a.hits || b.tokens - a.tokens);
  const boxes: TreeBox[] = [];
  let depth = 1;
  const put = (node: TreeNode, top: number): number => {
    const box: TreeBox = { node, from: node.depth, to: node.depth + node.blocks, top, leaves: 0 };
    boxes.push(box);
    depth = Math.max(depth, box.to);
    for (const child of children.get(node.id) ?? []) box.leaves += put(child, top + box.leaves);
    return (box.leaves ||= 1);
  };
  let leaves = 0;
  for (const root of children.get(null) ?? []) leaves += put(root, leaves);
  return { boxes, leaves, depth };
}

export function PrefixTree({ held }: { held: boolean }) {
  const tree = useSignal<{ nodes: TreeNode[]; total: number; shown: number } | null>(null);
  const problem = useSignal("");
  const marked = useSignal("");
  const [hover, setHover] = useState<{ x: number; y: number; node: TreeNode } | null>(null);
  usePolling(
    async (signal) => {
      if (held) return;
      try {
        const own = marked.value ? `&request=${marked.value}` : "";
        tree.value = await fetchJson(ofSource(`/observe/cache/tree?limit=${MOST_LEAVES}${own}`), { signal });
        problem.value = "";
      } catch (error) {
        if (!signal.aborted) problem.value = errorMessage(error);
      }
    },
    2000,
    [marked.value, held],
  );
  requestsVersion.value;
  const open = [...requests.values()].filter((one) => one.state !== "done").slice(-30);
  const nodes = tree.value?.nodes;
  const { boxes, leaves, depth } = useMemo(() => layOut(nodes ?? []), [nodes]);
  const scroller = useRef<HTMLDivElement>(null);
  const { ref, redraw } = useCanvas((context, width, height) => {
    const unit = width / depth;
    const above = scroller.current?.scrollTop ?? 0;
    context.textBaseline = "middle";
    context.font = font(13);
    for (const { node, from, to, top, leaves: high } of boxes) {
      const [x, y] = [from * unit, top * LEAF - above];
      if (y > height || y + high * LEAF < 0) continue;
      const [wide, tall] = [Math.max(1.5, (to - from) * unit - 1), high * LEAF - 1];
      context.globalAlpha = node.state === "evicted" ? 0.28 : Math.min(1, 0.38 + 0.16 * Math.log2(1 + node.hits));
      context.fillStyle = ink(COLOURS[node.state]);
      context.fillRect(x, y, wide, tall);
      context.globalAlpha = 1;
      if (node.own || hover?.node === node) {
        context.strokeStyle = ink("text");
        context.lineWidth = 1.5;
        context.strokeRect(x + 0.75, y + 0.75, wide - 1.5, tall - 1.5);
      }
      const size = node.hits ? `${count(node.tokens)} · ${count(node.hits)}×` : count(node.tokens);
      const label = node.text ? `${size}  ${node.text.replace(/\s+/g, " ").trim()}` : size;
      if (wide > 64 && tall >= 12) {
        context.fillStyle = ink("text");
        context.save();
        context.beginPath();
        context.rect(x, y, wide - 4, tall);
        context.clip();
        context.fillText(label, x + 6, Math.max(y, 0) + Math.min(tall, height) / 2);
        context.restore();
      }
    }
  });
  useEffect(redraw, [boxes, hover]);
  const point = (event: PointerEvent): void => {
    const unit = (ref.current?.clientWidth ?? 1) / depth;
    const [block, leaf] = [event.offsetX / unit, (event.offsetY + (scroller.current?.scrollTop ?? 0)) / LEAF];
    const box = boxes.find((one) => one.from <= block && block < one.to && one.top <= leaf && leaf < one.top + one.leaves);
    setHover(box ? { x: event.clientX, y: event.clientY, node: box.node } : null);
  };
  const top = [...(nodes ?? [])].filter((node) => node.hits > 0).sort((a, b) => b.hits - a.hits).slice(0, 5);
  return (
    <Card
      title="Prefix tree"
      note={`Cached prompt prefixes, left to right. Box width: tokens. Branch: prompts diverge. The stronger the colour, the more hits; an outline marks the highlighted request.${facts.value?.keep_texts ? "" : " With --keep-texts boxes show how they begin."}`}
      aside={
        open.length > 0 && (
          <select aria-label="Highlight the path of a request" value={marked.value} onChange={(event) => (marked.value = event.currentTarget.value)}>
            <option value="">Highlight a request…</option>
            {open.map((one) => (
              <option key={one.number} value={one.number}>
                #{one.number}
              </option>
            ))}
          </select>
        )
      }
    >
      {problem.value && <Problem message={problem.value} />}
      {nodes && nodes.length === 0 && (
        <Empty icon="branch" title="No prefixes yet">
          Full blocks of a prompt appear here once they are computed.
        </Empty>
      )}
      <div class="tree-scroll" ref={scroller} tabIndex={0} role="region" aria-label="Prefix tree" hidden={!nodes?.length} onScroll={redraw}>
        <div style={{ height: `${Math.max(1, leaves) * LEAF}px` }}>
          <canvas
            ref={ref}
            style={{ height: `${Math.min(TALLEST, Math.max(1, leaves) * LEAF)}px` }}
            role="img"
            aria-label={`Prefix tree of ${count(nodes?.length)} nodes; the table below lists the most used`}
            onPointerMove={point}
            onPointerLeave={() => setHover(null)}
          />
        </div>
      </div>
      {nodes && nodes.length > 0 && (
        <div class="row between">
          <Legend
            entries={[
              ["decode", "In use"],
              ["cached", "Cached"],
              ["output", "Recently evicted"],
            ]}
          />
          <span class="small muted">
            {count(tree.value?.shown)} of {count(tree.value?.total)} nodes
          </span>
        </div>
      )}
      {top.length > 0 && (
        <Table label="Most hits">
          <thead>
            <tr>
              <th>Most hits</th>
              <th class="num">Hits</th>
              <th>State</th>
            </tr>
          </thead>
          <tbody>
            {top.map((node) => (
              <tr key={node.id}>
                <td>
                  {node.text && <span class="node-text">“{node.text}”</span>} {count(node.tokens)} tokens <span class="muted">after {count((node.depth * node.tokens) / Math.max(1, node.blocks))}</span>
                </td>
                <td class="num">{count(node.hits)}</td>
                <td>{stateOf(node)}</td>
              </tr>
            ))}
          </tbody>
        </Table>
      )}
      {hover && (
        <Tip x={hover.x} y={hover.y}>
          <TipRows
            title={`${count(hover.node.tokens)} tokens`}
            rows={[
              ["hits", count(hover.node.hits)],
              ["state", stateOf(hover.node)],
              ["blocks", count(hover.node.blocks)],
              ...(hover.node.text ? ([["begins", hover.node.text]] as const) : []),
            ]}
          />
        </Tip>
      )}
    </Card>
  );
}

function stateOf({ state, holders, idle_s }: TreeNode): string {
  if (state === "held") return `in use by ${count(holders)}`;
  return state === "evicted" ? `evicted ${seconds(idle_s)} ago` : state;
}
