/** Where the time of the latest requests went. */
import { count, duration, percent } from "../../lib/format";
import { Card, Computed } from "../../parts/basics";
import type { PipelineAnswer } from "./data";
import { STAGES } from "./stages";

const PLACES = [...STAGES.map(({ name, title, colour }) => [name, title, colour] as const), ["wait", "Wait", "wait"] as const];

export function TimeBar({ answer, onSelect }: { answer: PipelineAnswer | null; onSelect: (name: string) => void }) {
  const total = Object.values(answer?.path_us ?? {}).reduce((all, us) => all + us, 0);
  const parts = PLACES.map(([name, title, colour]) => ({ name, title, colour, us: answer?.path_us[name] ?? 0 })).filter(({ us }) => us > 0);
  return (
    <Card
      title="Where the time goes"
      aside={<Computed what="Sum over requests" />}
      note={
        total > 0
          ? `Critical paths of the ${count(answer!.requests)} requests that ended in the last ${answer!.window_s} s: mean per request, and share.`
          : "Nothing ended in the last 60 s."
      }
    >
      {total > 0 && (
        <>
          <div class="stage-bar" aria-hidden="true">
            {parts.map(({ name, colour, us }) => (
              <i key={name} data-colour={colour} style={{ flexGrow: us }} />
            ))}
          </div>
          <ul class="time-parts">
            {parts
              .sort((a, b) => b.us - a.us)
              .slice(0, 8)
              .map(({ name, title, colour, us }) => (
                <li key={name}>
                  <button type="button" onClick={() => onSelect(name === "wait" ? "queue" : name)}>
                    <i data-colour={colour} />
                    {title}
                  </button>
                  <b>{duration(Math.round(us / Math.max(1, answer!.requests)))}</b>
                  <span class="muted">{percent(us / total)}</span>
                </li>
              ))}
          </ul>
        </>
      )}
    </Card>
  );
}
