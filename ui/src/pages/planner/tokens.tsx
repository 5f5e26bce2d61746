/** Token counter, with the served model's tokenizer. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { count, visible } from "../../lib/format";
import { fetchJson, errorMessage } from "../../lib/http";
import { ofModel } from "../../lib/source";
import { Card, Problem } from "../../parts/basics";

const SETTLE_MS = 250;
const SHOWN = 600;

export function TokenCounter() {
  const text = useSignal("Penstock counts tokens with the served model’s tokenizer.");
  const found = useSignal<{ count: number; token_strs: string[] } | null>(null);
  const problem = useSignal("");
  useEffect(() => {
    const timer = setTimeout(() => {
      fetchJson<{ count: number; token_strs: string[] }>("/tokenize", { body: { ...ofModel(), prompt: text.value, add_special_tokens: false, return_token_strs: true } }).then(
        (answer) => ((found.value = answer), (problem.value = "")),
        (error: unknown) => (problem.value = errorMessage(error)),
      );
    }, SETTLE_MS);
    return () => clearTimeout(timer);
  }, [text.value]);
  const now = found.value;
  return (
    <Card title="Token counter" aside={now && <b data-plan="count">{count(now.count)} tokens</b>}>
      <textarea rows={3} aria-label="Text to count" dir="auto" value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
      {problem.value && <Problem message={problem.value} />}
      {now && (
        <p class="counted mono" dir="auto">
          {now.token_strs.slice(0, SHOWN).map((token, place) => (
            <span key={place}>{visible(token)}</span>
          ))}
          {now.count > SHOWN && <em> and {count(now.count - SHOWN)} more</em>}
        </p>
      )}
    </Card>
  );
}
