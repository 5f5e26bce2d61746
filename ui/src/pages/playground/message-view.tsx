import { useEffect, useRef, useState } from "preact/hooks";
import { bytes, count, ms, percent, seconds } from "../../lib/format";
import { useEscape } from "../../lib/shortcuts";
import { Badge, Button, CopyButton, Problem } from "../../parts/basics";
import { ContextParts } from "../../parts/context-parts";
import { Icon } from "../../parts/icons";
import { JsonTree, parsed } from "../../parts/json-tree";
import { Markdown } from "../../parts/markdown";
import { editMessage, regenerate, show, siblings } from "./chat";
import { busy, type Lane } from "./lanes";
import type { Message } from "./message";
import { SchemaCheck } from "./schema-check";
import { StepsView, figures } from "./steps";
import { TokenText } from "./tokens";
import { ToolCalls, ToolResult } from "./tool-calls";

export type View = "text" | "tokens" | "steps";

export function MessageView({ lane, message, view }: { lane: Lane; message: Message; view: View }) {
  if (message.role === "tool") return <ToolResult message={message} />;
  return message.role === "user" ? <Question lane={lane} message={message} /> : <Answer lane={lane} message={message} view={view} />;
}

function Question({ lane, message }: { lane: Lane; message: Message }) {
  const [draft, setDraft] = useState<string | null>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  const editing = draft !== null;
  useEffect(() => {
    field.current?.focus();
  }, [editing]);
  useEscape(editing, () => setDraft(null));
  const send = (): void => {
    if (draft?.trim()) editMessage(lane, message, draft);
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
      {message.attachments.length > 0 && (
        <ul class="attachments" aria-label="Attached documents">
          {message.attachments.map(({ name, text }) => (
            <li key={name}>
              <Icon name="attach" size={14} /> {name} <small class="muted">{bytes(text.length)}</small>
            </li>
          ))}
        </ul>
      )}
      {draft === null && (
        <div class="tools">
          <Siblings lane={lane} message={message} />
          <Button icon="edit" kind="quiet" label="Edit and resend" onClick={() => setDraft(message.content)} />
          <CopyButton text={() => message.content} label="Copy message" />
        </div>
      )}
    </article>
  );
}

function Answer({ lane, message, view }: { lane: Lane; message: Message; view: View }) {
  message.version.value; // re-render once per frame while it streams
  const { state, tokens } = message;
  return (
    <article class="message answer" aria-label="Assistant" aria-busy={state === "streaming"} data-state={state}>
      <div class="who">{message.model}</div>
      {view === "tokens" && tokens.length > 0 ? (
        <TokenText lane={lane} message={message} />
      ) : view === "steps" && message.steps.length > 0 ? (
        <StepsView message={message} />
      ) : (
        <Content message={message} />
      )}
      {message.calls.length > 0 && <ToolCalls lane={lane} message={message} />}
      {state === "streaming" && (
        <span class="caret" role="status">
          <span class="sr-only">Generating</span>
        </span>
      )}
      {state === "failed" && <Problem message={message.error} onRetry={() => regenerate(lane, message)} />}
      {message.context && <Assembly message={message} />}
      <div class="tools">
        <Siblings lane={lane} message={message} />
        <Figures message={message} />
        <span class="actions">
          {message.id && state !== "streaming" && (
            <a class="button quiet square" href={`#/requests/${encodeURIComponent(message.id)}`} aria-label="See this request" title="See this request">
              <Icon name="requests" size={16} />
            </a>
          )}
          <Button icon="redo" kind="quiet" label="Regenerate" disabled={busy.value} onClick={() => regenerate(lane, message)} />
          <CopyButton text={() => message.content} label="Copy response" />
        </span>
      </div>
    </article>
  );
}

/** Its text; once it is whole, one that is JSON as a tree. */
function Content({ message }: { message: Message }) {
  message.version.value; // its props stay the same: without a signal it would not be drawn again
  const { content, reasoning, state, schema } = message;
  const [raw, setRaw] = useState(false);
  const value = state !== "streaming" && /^\s*[[{]/.test(content) ? parsed(content) : undefined;
  return (
    <>
      {reasoning && (
        <details class="reasoning">
          <summary>Reasoning</summary>
          <p class="as-is">{reasoning}</p>
        </details>
      )}
      {value === undefined ? (
        <Markdown text={content} />
      ) : (
        <figure class="json-answer">
          <figcaption>
            <SchemaCheck value={value} schema={schema} />
            <Button kind="quiet" onClick={() => setRaw(!raw)}>
              {raw ? "Tree" : "Text"}
            </Button>
          </figcaption>
          {raw ? <pre class="as-is">{content}</pre> : <JsonTree value={value} />}
        </figure>
      )}
      {value === undefined && state !== "streaming" && schema && <Badge tone="bad">not JSON: the answer does not match the schema</Badge>}
    </>
  );
}

/** What became of the documents and the history. */
function Assembly({ message: { context } }: { message: Message }) {
  if (!context) return null;
  const counts = new Map<string, number>();
  for (const { kind, action } of context.parts) if (kind === "document" || action !== "kept") counts.set(action, (counts.get(action) ?? 0) + 1);
  return (
    <details class="assembly">
      <summary>
        Context: {[...counts].map(([action, times]) => `${times} ${action}`).join(", ") || "all kept"} · {count(context.prompt_tokens)} of {count(context.limit - context.reserved_output)} tokens
      </summary>
      <ContextParts context={context} />
    </details>
  );
}

function Siblings({ lane, message }: { lane: Lane; message: Message }) {
  const all = siblings(message);
  if (all.length < 2) return null;
  const at = all.indexOf(message);
  const step = (by: number): void => show(lane, all[(at + by + all.length) % all.length]!);
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
  message.version.value;
  const { usage, timings, tokens, steps, sentAt, firstAt, lastAt } = message;
  const ended = message.finish || message.state === "stopped";
  if (!firstAt && !ended) return null; // an empty answer has an end, but no first token
  const made = tokens.filter((token) => !token.given).length;
  const outputs = usage?.completion_tokens ?? made;
  const rate = outputs > 1 && lastAt > firstAt ? ((outputs - 1) / (lastAt - firstAt)) * 1000 : null;
  const cached = usage?.prompt_tokens_details.cached_tokens;
  const sure = made ? Math.exp(tokens.reduce((sum, { given, logprob }) => sum + (given ? 0 : logprob), 0) / made) : null;
  const drafts = figures(steps);
  const inside = timings
    ? `Server: queue ${seconds(timings.queue_seconds)}, prefill ${seconds(timings.prefill_seconds)}, decode ${seconds(timings.decode_seconds)}`
    : "";
  return (
    <dl class="figures" title={inside}>
      {firstAt > 0 && (
        <div>
          <dt>TTFT</dt>
          <dd data-figure="ttft">{ms(firstAt - sentAt)}</dd>
        </div>
      )}
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
      {drafts.drafts > 0 && (
        <div title="Drafted tokens that the model drew itself, of all drafted tokens">
          <dt>drafts accepted</dt>
          <dd data-figure="drafts">
            {count(drafts.hits)} / {count(drafts.drafts)}
          </dd>
        </div>
      )}
      {sure !== null && (
        <div title="Geometric mean of the token probabilities">
          <dt>confidence</dt>
          <dd>{percent(sure, 0)}</dd>
        </div>
      )}
      {ended && (
        <div>
          <dt>finish</dt>
          <dd data-figure="end">{message.state === "stopped" ? "stopped" : message.finish}</dd>
        </div>
      )}
    </dl>
  );
}
