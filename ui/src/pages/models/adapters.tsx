/** The LoRA adapters of a model: where their weights are, and how often they were used. */
import { useSignal } from "@preact/signals";
import { bytes, count } from "../../lib/format";
import { Badge, Button, Table } from "../../parts/basics";
import type { Adapter, Model } from "./api";

const SHOWN = 50;

/** Where weights are. */
const PLACES: Record<string, string> = {
  "on disk": "No engine has needed it so far.",
  resident: "In memory.",
  loading: "Being read from disk; its requests wait.",
  evicted: "Others took its room; the next request loads it again.",
  failed: "It could not be loaded.",
};

const TONES: Record<string, string> = { resident: "good", loading: "warn", failed: "bad" };

const total = (adapter: Adapter, name: "hits" | "loads" | "in_use"): number => adapter.residency.reduce((sum, one) => sum + one[name], 0);

export function Adapters({ model, adapters, onRemove }: { model: Model; adapters: Adapter[]; onRemove: (name: string) => void }) {
  const all = useSignal(false);
  const sorted = [...adapters].sort((a, b) => total(b, "in_use") - total(a, "in_use") || total(b, "hits") - total(a, "hits") || a.name.localeCompare(b.name));
  const shown = all.value ? sorted : sorted.slice(0, SHOWN);
  return (
    <>
      <Table label={`Adapters of ${model.id}`} class="adapters">
        <thead>
          <tr>
            <th>Adapter</th>
            <th>Weights</th>
            <th class="num">In use</th>
            <th class="num">Hits</th>
            <th class="num">Loads</th>
            <th class="num">Rank</th>
            <th class="num">Size</th>
            <th>
              <span class="sr-only">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {shown.map((one) => (
            <tr key={one.id} data-adapter={one.name}>
              <td title={`${one.id}, version ${one.version}: ${one.modules.join(", ")}`}>{one.name}</td>
              <td>
                <Places adapter={one} />
              </td>
              <td class="num">{count(total(one, "in_use"))}</td>
              <td class="num">{count(total(one, "hits"))}</td>
              <td class="num">{count(total(one, "loads"))}</td>
              <td class="num">{count(one.rank)}</td>
              <td class="num">{bytes(one.bytes)}</td>
              <td class="num">
                <Button icon="trash" kind="quiet" label={`Remove ${one.id}`} onClick={() => onRemove(one.id)} />
              </td>
            </tr>
          ))}
        </tbody>
      </Table>
      {sorted.length > shown.length && (
        <Button kind="quiet" onClick={() => (all.value = true)}>
          Show all {count(sorted.length)} adapters
        </Button>
      )}
    </>
  );
}

function Places({ adapter }: { adapter: Adapter }) {
  const states = adapter.residency.length ? adapter.residency.map(({ state }) => state) : ["on disk"];
  const errors = adapter.residency.map(({ error }) => error ?? "").join(" ").trim();
  return (
    <span class="row tight">
      {[...new Set(states)].map((state) => (
        <Badge key={state} tone={TONES[state] ?? "plain"} title={errors || PLACES[state]}>
          {state}
        </Badge>
      ))}
    </span>
  );
}
