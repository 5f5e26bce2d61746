/** How a prompt was assembled under its token budget: each part, with its tokens and why. */
import type { ContextTrace } from "../../lib/api";
import { count, usd } from "../../lib/format";
import { Card } from "../../parts/basics";
import { ContextParts } from "../../parts/context-parts";

const PLACES: Record<string, string> = { template: "by the chat template", system: "in the system message", user: "in the user’s message" };

export function Context({ context }: { context: ContextTrace }) {
  const { prompt_tokens: prompt, reserved_output: output, limit } = context;
  return (
    <Card
      title="Context assembly"
      note={`${count(prompt)} prompt tokens and ${count(output)} reserved for the output, of ${count(limit)}. History: ${context.history}${context.rank ? `; documents ranked by ${context.rank}, placed ${PLACES[context.placement ?? ""] ?? context.placement}` : ""}.`}
    >
      <ContextParts context={context} />
      {context.calls.map((call, place) => (
        <p key={place} class="small muted">
          {call.kind} by {call.model}: {count(call.requests)} {call.requests === 1 ? "request" : "requests"}, {count(call.prompt_tokens)} prompt tokens (
          {count(call.cached_tokens)} cached), {count(call.output_tokens)} output tokens{call.cost_usd !== null && `, ${usd(call.cost_usd)}`}
        </p>
      ))}
    </Card>
  );
}
