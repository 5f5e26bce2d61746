/** What became of each part of a prompt that was assembled under a token budget. */
import type { ContextTrace } from "../lib/api";
import { count } from "../lib/format";
import { Badge, Table } from "./basics";

const TONES: Record<string, "good" | "warn" | "bad"> = { kept: "good", added: "good", cut: "warn", summarized: "warn", dropped: "bad" };

export function ContextParts({ context }: { context: ContextTrace }) {
  return (
    <Table label="Parts of the prompt">
      <thead>
        <tr>
          <th>Part</th>
          <th>Result</th>
          <th class="num">Tokens</th>
          <th class="num">Given</th>
          <th>Reason</th>
        </tr>
      </thead>
      <tbody>
        {context.parts.map((part, place) => (
          <tr key={place} data-kind={part.kind} data-action={part.action}>
            <td>
              {part.kind} {part.id && <span class="muted">{part.id}</span>}
            </td>
            <td>
              <Badge tone={TONES[part.action] ?? "warn"}>{part.action}</Badge>
            </td>
            <td class="num">{count(part.tokens)}</td>
            <td class="num">{part.given_tokens === undefined ? "" : count(part.given_tokens)}</td>
            <td class="small muted">{part.why}</td>
          </tr>
        ))}
      </tbody>
      <tfoot>
        <tr>
          <th colSpan={2}>Prompt</th>
          <th class="num">{count(context.prompt_tokens)}</th>
          <td colSpan={2} />
        </tr>
      </tfoot>
    </Table>
  );
}
