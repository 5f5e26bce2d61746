/** Chat with conversations that are kept, token probabilities, branches, and two lanes to compare. */
import { useEffect, useRef, useState } from "preact/hooks";
import { errorMessage, storedKey } from "../../lib/http";
import { useEscape, useShortcuts } from "../../lib/shortcuts";
import { Button, CopyButton, Problem, Segmented } from "../../parts/basics";
import { Dialog } from "../../parts/dialog";
import { askedPath, stop } from "./chat";
import { Composer } from "./composer";
import { current, startNew } from "./conversations";
import { History } from "./history";
import { comparing, lanes, main, startComparing, stopComparing } from "./lanes";
import type { View } from "./message-view";
import { ModelPicker } from "./model-picker";
import { loadModels } from "./models";
import { Panel } from "./panel";
import { requestBody, speculates } from "./request";
import { SAMPLES } from "./samples";
import { curl, python } from "./snippets";
import { Thread } from "./thread";

const DRAWER = matchMedia("(max-width: 1160px)"); // the parameters are a drawer: playground.css

const VIEWS: readonly (readonly [View, string])[] = [
  ["text", "Text"],
  ["tokens", "Tokens"],
  ["steps", "Steps"],
];

export function Playground() {
  const [view, setView] = useState<View>("text");
  const [panel, setPanel] = useState(false);
  const [history, setHistory] = useState(false);
  const [code, setCode] = useState(false);
  const [problem, setProblem] = useState("");
  const input = useRef<HTMLTextAreaElement>(null);
  const views = speculates() ? VIEWS : VIEWS.slice(0, 2);

  const findModels = (): void => void loadModels().then(() => setProblem(""), (error: unknown) => setProblem(errorMessage(error)));
  const toggleCompare = (): void => (comparing.value ? stopComparing() : startComparing());
  useEffect(findModels, []);
  useShortcuts("Playground", [
    { keys: "/", label: "Focus the message field", run: () => input.current?.focus() },
    { keys: "Escape", label: "Stop generating", run: stop, whileTyping: true },
    { keys: "v", label: "Switch text, tokens and steps", run: () => setView(views[(views.findIndex(([name]) => name === view) + 1) % views.length]![0]) },
    { keys: "n", label: "New conversation", run: startNew },
    { keys: "h", label: "Conversations", run: () => setHistory(!history) },
    { keys: "c", label: "Compare two models or parameter sets", run: toggleCompare },
    { keys: "p", label: "Parameters (narrow screens)", run: () => setPanel(!panel) },
  ]);
  useEscape(panel && DRAWER.matches, () => setPanel(false));
  useEscape(history, () => setHistory(false));
  return (
    <div class="playground">
      <div class="conversation">
        <header class="bar">
          <Button icon="history" label="Conversations" aria-expanded={history} onClick={() => setHistory(!history)} />
          <h1 title={current.value?.title}>Playground</h1>
          {!comparing.value && <ModelPicker lane={main} />}
          <span class="spacer" />
          <Segmented label="Show responses as" value={view} options={views} onChange={setView} />
          <div class="row">
            <Button icon="compare" label="Compare" aria-pressed={comparing.value} onClick={toggleCompare} />
            <Button label="Copy as code" onClick={() => setCode(true)}>
              <span aria-hidden="true">{"</>"}</span>
            </Button>
            <Button icon="plus" label="New conversation" onClick={startNew} />
            <span class="narrow">
              <Button icon="sliders" label="Parameters" aria-expanded={panel} onClick={() => setPanel(!panel)} />
            </span>
          </div>
        </header>
        {problem && <Problem message={problem} onRetry={findModels} />}
        <div class="lanes" data-lanes={lanes.value.length}>
          {lanes.value.map((lane) => (
            <Thread key={lane.name} lane={lane} view={view} />
          ))}
        </div>
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
      {history && <History onOpen={() => setHistory(false)} onClose={() => setHistory(false)} />}
      {code && <CodeDialog onClose={() => setCode(false)} />}
    </div>
  );
}

function CodeDialog({ onClose }: { onClose: () => void }) {
  const [kind, setKind] = useState<"curl" | "python">("curl");
  let text = "";
  try {
    const path = askedPath();
    const { include_drafts: _, ...body } = requestBody(main, path); // of streams alone
    const messages = path.length ? body : { ...body, messages: [{ role: "user", content: SAMPLES[0]!.text }] };
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
