/** How often the first, second, … token of a draft was right, of all that were drafted there. */
import { count, percent } from "../lib/format";

const SHOWN = 16;

export function Acceptance({ drafted, accepted }: { drafted: number[]; accepted: number[] }) {
  const positions = drafted.slice(0, SHOWN).filter(Boolean).length;
  if (!positions) return null;
  return (
    <dl class="positions" aria-label="Acceptance by position in the draft">
      {drafted.slice(0, positions).map((all, place) => {
        const share = (accepted[place] ?? 0) / Math.max(1, all);
        return (
          <div key={place} title={`Position ${place + 1}: ${count(accepted[place])} of ${count(all)} accepted`}>
            <dt>{place + 1}</dt>
            <dd>
              <i style={{ height: `${Math.round(share * 100)}%` }} />
              <span>{percent(share, 0)}</span>
            </dd>
          </div>
        );
      })}
    </dl>
  );
}
