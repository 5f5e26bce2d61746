import { useEffect, useRef, useState } from "preact/hooks";
import { count, ms, percent, seconds } from "../../lib/format";
import { useEscape } from "../../lib/shortcuts";
import { Button, CopyButton, Problem } from "../../parts/basics";
import { Markdown } from "../../parts/markdown";
import { regenerate, busy, type Message, modelName, sendMessage, show, siblings } from "./chat";
import { TokenText } from "./tokens";

export type View = "text" | "tokens";

export function MessageView({ message, view }: { message: Message; view: View }) {
  return message.role === "user" ? <Question message={message} /> : <Answer message={message} view={view} />;
}

function Question({ message }: { message: Message }) {
  const [draft, setDraft] = useState<string | null>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  const editing = draft !== null;
  useEffect(() => {
    field.current?.focus();
  }, [editing]);
  useEscape(editing, () => setDraft(null));
  const send = (): void => {
    if (draft?.trim()) sendMessage(draft, message.parent);
    setDraft(null);
  };
  return (
    <article class="message question" aria-label="You">
      {draft === null ? (
        <div class="bubble" dir="auto">
          {message.content}
        </div>
      ) : (
        <div class="editing">
          <textarea
            ref={field}
            rows={Math.min(10, draft.split("\n").length + 1)}
            aria-label="Edit message"
            value={draft}
            onInput={(event) => setDraft(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && !event.shiftKey) {
                event.preventDefault();
                send();
              }
            }}
          />
          <div class="row end">
            <Button onClick={() => setDraft(null)}>Cancel</Button>
            <Button kind="primary" onClick={send}>
              Send
            </Button>
          </div>
        </div>
      )}
      {draft === null && (
        <div class="tools">
          <Siblings message={message} />
          <Button icon="edit" kind="quiet" label="Edit and resend" onClick={() => setDraft(message.content)} />
          <CopyButton text={() => message.content} label="Copy message" />
        </div>
      )}
    </article>
  );
}

function Answer({ message, view }: { message: Message; view: View }) {
  message.version.value; // re-render once per frame while it streams
  const { state, content, tokens } = message;
  return (
    <article class="message answer" aria-label="Assistant" aria-busy={state === "streaming"} data-state={state}>
      <div class="who">{modelName.value}</div>
      {view === "tokens" && tokens.length > 0 ? <TokenText message={message} /> : <Markdown text={content} />}
      {state === "streaming" && (
        <span class="caret" role="status">
          <span class="sr-only">Generating</span>
        </span>
      )}
      {state === "failed" && <Problem message={message.error} onRetry={() => regenerate(message)} />}
      <div class="tools">
        <Siblings message={message} />
        <Figures message={message} />
        <span class="actions">
          <Button icon="redo" kind="quiet" label="Regenerate" disabled={busy.value} onClick={() => regenerate(message)} />
          <CopyButton text={() => message.content} label="Copy response" />
        </span>
      </div>
    </article>
  );
}

function Siblings({ message }: { message: Message }) {
  const all = siblings(message);
  if (all.length < 2) return null;
  const at = all.indexOf(message);
  const step = (by: number): void => show(all[(at + by + all.length) % all.length]!);
  return (
    <span class="siblings" role="group" aria-label="Branches">
      <Button icon="left" kind="quiet" label="Previous branch" onClick={() => step(-1)} />
      <span>
        {at + 1} / {all.length}
      </span>
      <Button icon="right" kind="quiet" label="Next branch" onClick={() => step(1)} />
    </span>
  );
}

/** Measured in the browser; the tooltip has the server's figures. */
function Figures({ message }: { message: Message }) {
  const { usage, timings, tokens, sentAt, firstAt, lastAt } = message;
  if (!firstAt) return null;
  const made = tokens.filter((token) => !token.given).length;
  const outputs = usage?.completion_tokens ?? made;
  const rate = outputs > 1 && lastAt > firstAt ? ((outputs - 1) / (lastAt - firstAt)) * 1000 : null;
  const cached = usage?.prompt_tokens_details.cached_tokens;
  const sure = made ? Math.exp(tokens.reduce((sum, { given, logprob }) => sum + (given ? 0 : logprob), 0) / made) : null;
  const inside = timings
    ? `Server: queue ${seconds(timings.queue_seconds)}, prefill ${seconds(timings.prefill_seconds)}, decode ${seconds(timings.decode_seconds)}`
    : "";
  return (
    <dl class="figures" title={inside}>
      <div>
        <dt>TTFT</dt>
        <dd data-figure="ttft">{ms(firstAt - sentAt)}</dd>
      </div>
      {rate !== null && (
        <div>
          <dt>tok/s</dt>
          <dd data-figure="rate">{rate.toFixed(1)}</dd>
        </div>
      )}
      {outputs > 0 && (
        <div>
          <dt>output</dt>
          <dd data-figure="output">{count(outputs)}</dd>
        </div>
      )}
      {usage && (
        <div>
          <dt>prompt</dt>
          <dd data-figure="prompt">
            {count(usage.prompt_tokens)}
            {cached ? <span class="cached"> {count(cached)} cached</span> : <span class="muted"> 0 cached</span>}
          </dd>
        </div>
      )}
      {sure !== null && (
        <div title="Geometric mean of the token probabilities">
          <dt>confidence</dt>
          <dd>{percent(sure, 0)}</dd>
        </div>
      )}
      {(message.finish || message.state === "stopped") && (
        <div>
          <dt>finish</dt>
          <dd data-figure="end">{message.state === "stopped" ? "stopped" : message.finish}</dd>
        </div>
      )}
    </dl>
  );
}
