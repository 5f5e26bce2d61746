/** The safety rules that a request or its answer matched. */
import type { SafetyHit } from "../../lib/api";
import { Badge, Card } from "../../parts/basics";

export function Safety({ hits }: { hits: SafetyHit[] }) {
  return (
    <Card title="Safety">
      <ol class="route">
        {hits.map((hit, place) => (
          <li key={place} data-kind="failure">
            <p>
              <Badge tone="bad">{hit.where}</Badge> <b>{hit.rule}</b> <span class="muted">in {hit.part}</span>
            </p>
            {hit.text !== null && <p class="small muted">{hit.text}</p>}
          </li>
        ))}
      </ol>
    </Card>
  );
}
