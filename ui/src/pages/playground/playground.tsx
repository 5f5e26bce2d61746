/** Chat with token probabilities and branches. */
import { useEffect, useRef, useState } from "preact/hooks";
import { fetchJson, errorMessage, storedKey } from "../../lib/http";
import { facts } from "../../lib/live";
import { useEscape, useShortcuts } from "../../lib/shortcuts";
import { Button, CopyButton, Problem, Segmented } from "../../parts/basics";
import { Dialog } from "../../parts/dialog";
import { Icon } from "../../parts/icons";
import { Terms } from "../../parts/terms";
import { busy, clear, modelName, modelNames, requestBody, sendMessage, stop, thread } from "./chat";
import { MessageView, type View } from "./message";
import { Panel } from "./panel";
import { settings } from "./params";
import { curl, python } from "./snippets";

const EXAMPLES = [
  "Why is the sky blue? Answer in two sentences.",
  "Write a Python function that reverses a string.",
  "Tell me a very short story about a lighthouse.",
];

const DRAWER = matchMedia("(max-width: 1160px)"); // the parameters are a drawer: playground.css

export function Playground() {
  const [view, setView] = useState<View>("text");
  const [panel, setPanel] = useState(false);
  const [code, setCode] = useState(false);
  const [problem, setProblem] = useState("");
  const input = useRef<HTMLTextAreaElement>(null);

  const findModel = (): void => {
    fetchJson<{ data: { id: string }[] }>("/v1/models").then(
      ({ data }) => {
        modelNames.value = data.map(({ id }) => id);
        if (!modelNames.value.includes(modelName.value)) modelName.value = modelNames.value[0] ?? "";
        setProblem("");
      },
      (error: unknown) => setProblem(errorMessage(error)),
    );
  };
  useEffect(findModel, []);
  useShortcuts("Playground", [
    { keys: "/", label: "Focus the message field", run: () => input.current?.focus() },
    { keys: "Escape", label: "Stop generating", run: stop, whileTyping: true },
    { keys: "v", label: "Switch text and tokens", run: () => setView(view === "text" ? "tokens" : "text") },
    { keys: "n", label: "New conversation", run: clear },
    { keys: "p", label: "Parameters (narrow screens)", run: () => setPanel(!panel) },
  ]);
  useEscape(panel && DRAWER.matches, () => setPanel(false));
  return (
    <div class="playground">
      <div class="conversation">
        <header class="bar">
          <h1>Playground</h1>
          <span class="spacer" />
          {modelNames.value.length > 1 && (
            <select aria-label="Model" value={modelName.value} onChange={(event) => (modelName.value = event.currentTarget.value)}>
              {modelNames.value.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          )}
          <Segmented
            label="Show responses as"
            value={view}
            options={[
              ["text", "Text"],
              ["tokens", "Tokens"],
            ]}
            onChange={setView}
          />
          <div class="row">
            <Button label="Copy as code" onClick={() => setCode(true)}>
              <span aria-hidden="true">{"</>"}</span>
            </Button>
            <Button icon="plus" label="New conversation" onClick={clear} />
            <span class="narrow">
              <Button icon="sliders" label="Parameters" aria-expanded={panel} onClick={() => setPanel(!panel)} />
            </span>
          </div>
        </header>
        {problem && <Problem message={problem} onRetry={findModel} />}
        <Thread view={view} />
        <Composer input={input} />
      </div>
      <aside class="panel" data-open={panel} aria-label="Parameters">
        <div class="panel-head">
          <h2>Parameters</h2>
          <span class="narrow">
            <Button icon="close" kind="quiet" label="Close parameters" onClick={() => setPanel(false)} />
          </span>
        </div>
        <Panel />
      </aside>
      {code && <CodeDialog onClose={() => setCode(false)} />}
    </div>
  );
}

function Thread({ view }: { view: View }) {
  const box = useRef<HTMLDivElement>(null);
  const pinned = useRef(true);
  const messages = thread.value;
  const last = messages.at(-1);
  last?.version.value; // re-render while it streams
  useEffect(() => {
    if (pinned.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  return (
    <div
      class="thread"
      ref={box}
      tabIndex={0}
      role="log"
      aria-label="Conversation"
      aria-live="off"
      onScroll={({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) =>
        (pinned.current = scrollHeight - scrollTop - clientHeight < 40)
      }
    >
      {messages.length === 0 ? (
        <div class="welcome">
          <Icon name="playground" size={30} />
          <h2>Chat with {modelName.value || "the model"}</h2>
          <p>
            The Tokens view shows each token’s probability and alternatives.{" "}
            {facts.value && (facts.value.keep_texts ? "This server stores prompts and responses (--keep-texts)." : "The server stores no texts.")}
          </p>
          <ul>
            {EXAMPLES.map((text) => (
              <li key={text}>
                <Button onClick={() => sendMessage(text)}>{text}</Button>
              </li>
            ))}
          </ul>
          <Terms of="playground" />
        </div>
      ) : (
        <div class="messages">
          {messages.map((message) => (
            <MessageView key={message.key} message={message} view={view} />
          ))}
          {view === "tokens" && <Scale />}
        </div>
      )}
    </div>
  );
}

function Scale() {
  return (
    <p class="scale small">
      <span>Probability</span>
      {["< 10%", "< 30%", "< 50%", "< 70%", "< 90%", "≥ 90%"].map((label, place) => (
        <span key={label} class={`tok p${place}`}>
          {label}
        </span>
      ))}
      <span class="muted">before temperature and filters; click a token to branch</span>
    </p>
  );
}

function Composer({ input }: { input: { current: HTMLTextAreaElement | null } }) {
  const [text, setText] = useState("");
  const send = (): void => {
    if (!text.trim() || busy.value) return;
    sendMessage(text);
    setText("");
  };
  useEffect(() => {
    const field = input.current;
    if (!field) return;
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight + 2, 240)}px`;
  }, [text]);
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref={input}
        rows={1}
        dir="auto"
        aria-label="Your message"
        placeholder="Message"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send();
          }
        }}
      />
      {busy.value ? (
        <Button icon="stop" kind="primary" label="Stop" onClick={stop} />
      ) : (
        <Button icon="send" kind="primary" label="Send" type="submit" disabled={!text.trim()} />
      )}
    </form>
  );
}

function CodeDialog({ onClose }: { onClose: () => void }) {
  const [kind, setKind] = useState<"curl" | "python">("curl");
  settings.value;
  let text = "";
  try {
    const path = thread.value.at(-1)?.role === "assistant" ? thread.value.slice(0, -1) : thread.value;
    const messages = path.length ? requestBody(path) : { ...requestBody([]), messages: [{ role: "user", content: EXAMPLES[0] }] };
    text = (kind === "curl" ? curl : python)(messages, location.origin, storedKey() !== null);
  } catch (error) {
    text = errorMessage(error);
  }
  return (
    <Dialog title="Request as code" onClose={onClose} wide>
      <div class="row between">
        <Segmented
          label="Language"
          value={kind}
          options={[
            ["curl", "curl"],
            ["python", "Python (openai)"],
          ]}
          onChange={setKind}
        />
        <CopyButton text={() => text} label="Copy" />
      </div>
      <pre class="snippet" tabIndex={0}>
        <code>{text}</code>
      </pre>
    </Dialog>
  );
}
