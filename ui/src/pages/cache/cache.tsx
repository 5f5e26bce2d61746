/** The KV cache: block map, prefix tree, cache-miss explainer, evictions. */
import { useSignal } from "@preact/signals";
import type { CacheMap } from "../../lib/api";
import { ago, count, percent } from "../../lib/format";
import { usePolling } from "../../lib/frames";
import { fetchJson, errorMessage } from "../../lib/http";
import { ofSource } from "../../lib/source";
import { wallClock } from "../../lib/live";
import { useShortcuts } from "../../lib/shortcuts";
import { Button, Card, PageHeader, Problem, Stat, Table } from "../../parts/basics";
import { Explainer } from "./explainer";
import { PageMap } from "./page-map";
import { PrefixTree } from "./prefix-tree";

const EVERY_MS = 1000;

export function Cache() {
  const map = useSignal<CacheMap | null>(null);
  const problem = useSignal("");
  const held = useSignal(false);
  usePolling(async (signal) => {
    if (held.value) return;
    try {
      map.value = await fetchJson<CacheMap>(ofSource("/observe/cache"), { signal });
      problem.value = "";
    } catch (error) {
      if (!signal.aborted) problem.value = errorMessage(error);
    }
  }, EVERY_MS);
  const toggle = (): void => {
    held.value = !held.value;
  };
  useShortcuts("Cache", [{ keys: " ", label: "Pause or resume", run: toggle }]);
  const now = map.value;
  return (
    <>
      <PageHeader title="Cache" terms="cache" lead="Every KV block, the prefix tree, and why a prompt missed the prefix cache.">
        <Button icon={held.value ? "play" : "pause"} aria-pressed={held.value} onClick={toggle}>
          {held.value ? "Resume" : "Pause"}
        </Button>
      </PageHeader>
      <div class="stack">
        {problem.value && <Problem message={problem.value} />}
        {now && <Figures now={now} />}
        {now?.groups.map((group, place) => (
          <PageMap
            key={place}
            group={group}
            blockSize={now.block_size}
            sequences={now.sequences}
            title={now.groups.length > 1 ? `KV blocks, cache group ${place}${group.window ? ` (window ${group.window})` : ""}` : "KV blocks"}
          />
        ))}
        <Explainer />
        <PrefixTree held={held.value} />
        {now && <Evictions now={now} />}
      </div>
    </>
  );
}

function Figures({ now }: { now: CacheMap }) {
  const total = now.groups.reduce((all, group) => all + group.total, 0);
  const used = now.groups.reduce((all, group) => all + group.held, 0);
  return (
    <Card>
      <dl class="stats">
        <Stat name="In use" value={percent(used / Math.max(1, total))} detail={`${count(used)} of ${count(total)} blocks`} />
        <Stat
          name="Prefix cache hit rate"
          value={now.prefix_caching ? percent(now.hits.ratio ?? null) : "off"}
          detail={`${count(now.hits.hit_tokens)} of ${count(now.hits.prompt_tokens)} prompt tokens`}
        />
        <Stat
          name="Fragmentation"
          value={percent(now.fragmentation.ratio)}
          detail={`${count(now.fragmentation.waste_tokens)} unused token slots in allocated blocks`}
        />
        <Stat name="Evictions" value={count(now.evictions.total)} detail={`${count(now.evictions.last_60_s)} in the last minute`} />
        <Stat name="Block size" value={`${now.block_size} tokens`} detail={`${count(now.ghosts)} evicted blocks remembered`} />
      </dl>
    </Card>
  );
}

function Evictions({ now }: { now: CacheMap }) {
  const recent = now.evictions.recent.slice(0, 12);
  return (
    <Card title="Recent evictions">
      {recent.length === 0 ? (
        <p class="muted">No evictions: the cache has had room for every block.</p>
      ) : (
        <Table label="Recent evictions">
          <thead>
            <tr>
              <th>When</th>
              <th class="num">Tokens</th>
              <th class="num">Prefix tokens</th>
              <th class="num">Hits</th>
            </tr>
          </thead>
          <tbody>
            {recent.map((one, place) => (
              <tr key={place}>
                <td>{ago(wallClock(one.t))}</td>
                <td class="num">{count(one.tokens)}</td>
                <td class="num">{count(one.depth * now.block_size)}</td>
                <td class="num">{count(one.hits)}</td>
              </tr>
            ))}
          </tbody>
        </Table>
      )}
    </Card>
  );
}
