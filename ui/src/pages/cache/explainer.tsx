/** Explains the prefix cache hit or miss of a past request, or of a prompt that is not sent. */
import { useSignal } from "@preact/signals";
import type { Explanation, RequestDetail } from "../../lib/api";
import { fetchJson, errorMessage } from "../../lib/http";
import { source } from "../../lib/source";
import { requests, requestsVersion } from "../../lib/live";
import { Button, Card, Field, Problem, Segmented } from "../../parts/basics";
import { ExplanationView } from "../../parts/explanation";

export function Explainer() {
  const mode = useSignal<"request" | "text">("request");
  const found = useSignal<{ about: string; explanation: Explanation } | null>(null);
  const problem = useSignal("");
  const text = useSignal("");
  const chat = useSignal(true);
  const salt = useSignal("");
  requestsVersion.value;
  const recent = [...requests.values()].filter((one) => one.prompt_tokens).sort((a, b) => b.number - a.number).slice(0, 50);

  const explain = async (asked: () => Promise<{ about: string; explanation: Explanation | null }>): Promise<void> => {
    try {
      const { about, explanation } = await asked();
      found.value = explanation && { about, explanation };
      problem.value = explanation ? "" : `No cache lookup is recorded for ${about}.`;
    } catch (error) {
      problem.value = errorMessage(error);
    }
  };
  const ofRequest = (number: string): void => {
    if (!number) return;
    void explain(async () => {
      const detail = await fetchJson<RequestDetail>(`/observe/requests/${number}`);
      return { about: `request #${number}`, explanation: detail.sequences.find((one) => one.cache)?.cache ?? null };
    });
  };
  const ofText = (): void => {
    const prompt = chat.value ? { messages: [{ role: "user", content: text.value }] } : { prompt: text.value };
    void explain(async () => ({
      about: "this prompt, now",
      explanation: await fetchJson<Explanation>("/observe/cache/explain", {
        body: { ...prompt, ...(source.value ?? {}), ...(salt.value ? { cache_salt: salt.value } : {}) },
      }),
    }));
  };
  return (
    <Card
      title="Cache-miss explainer"
      aside={
        <Segmented
          label="Explain"
          value={mode.value}
          options={[
            ["request", "A request"],
            ["text", "A prompt"],
          ]}
          onChange={(next) => (mode.value = next)}
        />
      }
      note="Finds the nearest cached or recently evicted prefix, and the token at which the prompt diverges from it. Shows only the prompt’s own text."
    >
      {mode.value === "request" ? (
        <Field label="Request">
          {(id) => (
            <select id={id} onChange={(event) => ofRequest(event.currentTarget.value)}>
              <option value="">{recent.length ? "Select a request…" : "No requests yet"}</option>
              {recent.map((one) => (
                <option key={one.number} value={one.number}>
                  #{one.number} · {one.kind} · {one.prompt_tokens} tokens, {one.cached_tokens ?? 0} cached
                </option>
              ))}
            </select>
          )}
        </Field>
      ) : (
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            ofText();
          }}
        >
          <Field label="Prompt">
            {(id) => <textarea id={id} rows={3} value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />}
          </Field>
          <div class="row">
            <label class="check">
              <input type="checkbox" checked={chat.value} onChange={(event) => (chat.value = event.currentTarget.checked)} />
              As a chat message
            </label>
            <input
              class="salt"
              aria-label="Cache salt"
              placeholder="Cache salt (none)"
              value={salt.value}
              onInput={(event) => (salt.value = event.currentTarget.value)}
            />
            <Button kind="primary" type="submit" disabled={!text.value}>
              Explain
            </Button>
          </div>
        </form>
      )}
      {problem.value && <Problem message={problem.value} />}
      {found.value && (
        <div class="found">
          <h3>Result for {found.value.about}</h3>
          <ExplanationView explanation={found.value.explanation} />
        </div>
      )}
    </Card>
  );
}
