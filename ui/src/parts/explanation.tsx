/** Why a prompt hit or missed the prefix cache. */
import type { Explanation } from "../lib/api";
import { count } from "../lib/format";

export function ExplanationView({ explanation: one }: { explanation: Explanation }) {
  const { prompt_tokens: all, cached_tokens: cached, matched_tokens: matched, text } = one;
  const share = (tokens: number): string => `${(100 * Math.max(0, tokens)) / Math.max(1, all)}%`;
  return (
    <div class="explanation" data-reason={one.reason}>
      <p>{one.message}</p>
      <div class="prefix-bar" aria-hidden="true">
        <i data-colour="cached" style={{ width: share(cached) }} />
        <i class="agrees" style={{ width: share(matched - cached) }} />
        <i class="own" style={{ width: share(all - Math.max(matched, cached)) }} />
      </div>
      <ul class="legend" aria-label="Tokens of the prompt">
        <li>
          <i data-colour="cached" /> {count(cached)} cached
        </li>
        {matched > cached && (
          <li>
            <i class="agrees" /> {count(matched - cached)} matched, recomputed
          </li>
        )}
        <li>
          <i class="own" /> {count(all - Math.max(matched, cached))} new
        </li>
      </ul>
      {text && (
        <p class="diverged mono" dir="auto">
          <span>{text.before}</span>
          <mark>{text.at || "∅"}</mark>
          <span class="after">{text.after}</span>
        </p>
      )}
    </div>
  );
}
