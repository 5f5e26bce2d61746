/** The tool calls of an answer: each is allowed, refused or answered by hand; then the model goes on. */
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { errorMessage } from "../../lib/http";
import { Badge, Button } from "../../parts/basics";
import { JsonTree, parsed } from "../../parts/json-tree";
import { all, sendResults } from "./chat";
import type { Lane } from "./lanes";
import { findTool } from "./mcp-servers";
import { type Message, pathTo, type ToolCall } from "./message";

/** Answers in a row without a word of the user. */
const MAX_STEPS = 8;
const MAX_RESULT = 100_000; // characters that go back to the model
/** Extra steps that the user allowed, by the message that began the loop. */
const extended = signal(new Map<Message | undefined, number>());
const REFUSED = "The user did not allow this call.";

export function ToolCalls({ lane, message }: { lane: Lane; message: Message }) {
  message.version.value;
  const [results, setResults] = useState<(string | undefined)[]>([]);
  const { step, asked } = stepOf(message);
  const most = MAX_STEPS + (extended.value.get(asked) ?? 0);
  const open = message.state === "done" && !all.value.some((other) => other.parent === message);
  const beyond = step > most;
  useEffect(() => {
    const done = message.calls.every((_, place) => results[place] !== undefined);
    if (open && done && message.calls.length) sendResults(lane, message, results as string[]);
  }, [results]);
  return (
    <div class="tool-calls">
      {message.calls.map((call, place) => (
        <Call
          key={call.id || place}
          call={call}
          step={step}
          open={open && !beyond && results[place] === undefined}
          result={open ? results[place] : undefined}
          onResult={(text) =>
            setResults((now) => {
              const next = [...now];
              next[place] = text.slice(0, MAX_RESULT);
              return next;
            })
          }
        />
      ))}
      {open && beyond && (
        <p class="row">
          <span>{most} steps without a word from you: the loop stops here.</span>
          <Button onClick={() => (extended.value = new Map(extended.value).set(asked, most))}>Go on</Button>
        </p>
      )}
    </div>
  );
}

/** Which answer in a row this is, to which message of the user. */
function stepOf(message: Message): { step: number; asked: Message | undefined } {
  const path = pathTo(message);
  const since = path.findLastIndex(({ role }) => role === "user");
  return { step: path.slice(since).filter(({ role }) => role === "assistant").length, asked: path[since] };
}

interface CallProps {
  call: ToolCall;
  step: number;
  open: boolean;
  result: string | undefined; // while others are waited for
  onResult: (text: string) => void;
}

function Call({ call, step, open, result, onResult }: CallProps) {
  const [text, setText] = useState("");
  const [state, setState] = useState<"asked" | "running" | string>("asked");
  const abort = useRef<AbortController | null>(null);
  useEffect(() => () => abort.current?.abort(), []);
  const found = findTool(call.name);
  const given = parsed(call.arguments || "{}");
  const run = (): void => {
    if (!found || given === undefined) return;
    setState("running");
    abort.current = new AbortController();
    found.client.call(found.tool.name, given, abort.current.signal).then(
      ({ text: result, failed }) => onResult(failed ? `Error: ${result}` : result),
      (error: unknown) => setState(errorMessage(error)),
    );
  };
  return (
    <section class="tool-call" aria-label={`Call of ${call.name}`}>
      <header>
        <b class="mono">{call.name}</b>
        <Badge>step {step}</Badge>
        {found && <span class="muted small">{found.client.name}</span>}
      </header>
      {given === undefined ? <pre class="as-is">{call.arguments}</pre> : <JsonTree value={given} />}
      {result !== undefined && <pre class="as-is">{result || "(empty)"}</pre>}
      {open && (
        <>
          {state !== "asked" && state !== "running" && <p role="alert">{state}</p>}
          {found ? (
            <div class="row">
              <Button kind="primary" disabled={state === "running" || given === undefined} onClick={run}>
                {state === "running" ? "Running…" : "Allow this call"}
              </Button>
              <Button disabled={state === "running"} onClick={() => onResult(REFUSED)}>
                Refuse
              </Button>
              <span class="muted small">Runs on {new URL(found.client.url).host}</span>
            </div>
          ) : (
            <form
              onSubmit={(event) => {
                event.preventDefault();
                onResult(text);
              }}
            >
              <textarea rows={2} class="mono" aria-label={`Result of ${call.name}`} placeholder="Result, which you write in the tool’s place" value={text} onInput={(event) => setText(event.currentTarget.value)} />
              <div class="row">
                <Button kind="primary" type="submit">
                  Send the result
                </Button>
                <Button onClick={() => onResult(REFUSED)}>Refuse</Button>
              </div>
            </form>
          )}
        </>
      )}
    </section>
  );
}

export function ToolResult({ message }: { message: Message }) {
  const value = parsed(message.content);
  return (
    <article class="message tool-result" aria-label="Tool result">
      <div class="who">Result</div>
      {value !== undefined && typeof value === "object" ? <JsonTree value={value} /> : <pre class="as-is">{message.content || "(empty)"}</pre>}
    </article>
  );
}
