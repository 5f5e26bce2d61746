/** How a prompt was assembled under its token budget: each part, with its tokens and why. */
import type { ContextTrace } from "../../lib/api";
import { count } from "../../lib/format";
import { Badge, Card, Table } from "../../parts/basics";

const TONES: Record<string, "good" | "warn" | "bad"> = { kept: "good", added: "good", cut: "warn", summarized: "warn", dropped: "bad" };

export function Context({ context }: { context: ContextTrace }) {
  const { prompt_tokens: prompt, reserved_output: output, limit } = context;
  return (
    <Card
      title="Context assembly"
      note={`${count(prompt)} prompt tokens and ${count(output)} reserved for the output, of ${count(limit)}. History: ${context.history}${context.rank ? `; documents ranked by ${context.rank}, placed by ${context.placement}` : ""}.`}
    >
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
            <th class="num">{count(prompt)}</th>
            <th colSpan={2} />
          </tr>
        </tfoot>
      </Table>
      {context.calls.map((call, place) => (
        <p key={place} class="small muted">
          {call.kind} by {call.model}: {count(call.prompt_tokens)} prompt tokens, {count(call.output_tokens)} output tokens
        </p>
      ))}
    </Card>
  );
}
