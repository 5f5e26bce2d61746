/** What speculation has made of the engine's steps since its start. */
import { useSignal } from "@preact/signals";
import { count, percent, seconds } from "../../lib/format";
import { usePolling } from "../../lib/frames";
import { fetchJson } from "../../lib/http";
import { facts } from "../../lib/live";
import { ofSource } from "../../lib/source";
import { Card, Computed, Stat } from "../../parts/basics";
import { Acceptance } from "../../parts/acceptance";

interface Totals {
  on: boolean;
  steps: number;
  drafted: number;
  accepted: number;
  saved_s: number;
  audited: number;
  mismatches: number;
  drafted_by_position: number[];
  accepted_by_position: number[];
}

export function Speculation() {
  const found = useSignal<Totals | null>(null);
  const engine = facts.value?.engine.speculation;
  const on = engine !== undefined && engine !== "off";
  usePolling(
    async (signal) => {
      if (on) found.value = await fetchJson<Totals>(ofSource("/observe/speculation"), { signal });
    },
    3000,
    [on],
  );
  const totals = found.value;
  if (!on || !totals?.on) return null;
  return (
    <Card
      title="Speculation"
      aside={<a href="#/playground">step by step in the playground</a>}
      note="Tokens that were drafted and computed together in one step. Accepted ones are those that the model drew itself at their position."
    >
      <dl class="stats">
        <Stat name="Accepted" value={percent(totals.drafted ? totals.accepted / totals.drafted : null, 0)} detail={`${count(totals.accepted)} of ${count(totals.drafted)} drafted`} />
        <Stat name="Tokens per step" value={totals.steps ? (totals.accepted / totals.steps + 1).toFixed(2) : "–"} detail={`over ${count(totals.steps)} steps with drafts`} />
        <Stat name="Time saved" value={seconds(totals.saved_s)} detail={<Computed what="Estimate" />} />
        <Stat
          name="Audit"
          value={totals.audited ? `${count(totals.mismatches)} wrong` : "off"}
          tone={totals.mismatches ? "bad" : undefined}
          detail={totals.audited ? `of ${count(totals.audited)} tokens drawn again` : "--speculate-audit 0.01 turns it on"}
        />
      </dl>
      <Acceptance drafted={totals.drafted_by_position} accepted={totals.accepted_by_position} />
    </Card>
  );
}
