/** Adds a model or an upstream: an entry of [[models]]. */
import { useState } from "preact/hooks";
import { problemOf } from "../../lib/admin";
import { Button, Problem, Segmented } from "../../parts/basics";
import { Dialog } from "../../parts/dialog";
import { Check, Checks, TextField } from "../../parts/form";

type Kind = "local" | "upstream";

interface Entry {
  name: string;
  label: string;
  hint?: string;
  placeholder?: string;
  kind?: Kind; // default: both
  type?: "number";
  list?: boolean; // comma-separated
  required?: boolean;
}

const ENTRIES: Entry[] = [
  { name: "name", label: "Name", hint: "What clients put into model.", required: true },
  { name: "model", label: "Model", kind: "local", placeholder: "smollm2", hint: "A catalogue name, a folder, a GGUF file or a Hugging Face repository. It is downloaded if need be.", required: true },
  { name: "upstream", label: "URL", kind: "upstream", placeholder: "https://api.example.com/v1", hint: "Of an OpenAI-compatible API.", required: true },
  { name: "upstream_model", label: "Name there", kind: "upstream", hint: "Default: the same name." },
  { name: "api_key_env", label: "Key variable", kind: "upstream", hint: "The server’s environment variable that holds the upstream’s key." },
];
const MORE: Entry[] = [
  { name: "replicas", label: "Replicas", kind: "local", type: "number", placeholder: "1" },
  { name: "keep_alive", label: "Keep alive", kind: "local", placeholder: "always", hint: "Unload after this time without requests, such as 5m." },
  { name: "context", label: "Context (tokens)", type: "number" },
  { name: "aliases", label: "Aliases", list: true, hint: "Comma-separated." },
  { name: "fallback", label: "Fallback", list: true, hint: "Models that stand in if this one fails, comma-separated." },
  { name: "region", label: "Region" },
  { name: "tokenizer", label: "Tokenizer", kind: "upstream", hint: "A model whose tokenizer counts tokens." },
];
const PRICES: Entry[] = [
  { name: "input", label: "Input", type: "number" },
  { name: "output", label: "Output", type: "number" },
  { name: "cached_input", label: "Cached input", type: "number" },
];
const CAPABILITIES = ["chat", "completion", "embedding", "tools", "structured_output", "reasoning", "logprobs", "token_ids", "extensions"];
const USUAL = ["chat", "tools", "structured_output"];

type Values = Record<string, string>;

function entryOf(kind: Kind, values: Values, { demand, pinned, capabilities }: { demand: boolean; pinned: boolean; capabilities: string[] }): Record<string, unknown> {
  const given = [...ENTRIES, ...MORE].filter((one) => (one.kind ?? kind) === kind && values[one.name]?.trim());
  const entry: Record<string, unknown> = {};
  for (const { name, type, list } of given) {
    const text = values[name]!.trim();
    entry[name] = list ? text.split(",").map((part) => part.trim()).filter(Boolean) : type === "number" ? Number(text) : text;
  }
  const prices = PRICES.filter(({ name }) => values[`price.${name}`]?.trim());
  if (prices.length) entry.price = Object.fromEntries(prices.map(({ name }) => [name, Number(values[`price.${name}`])]));
  if (kind === "upstream") return { ...entry, capabilities };
  return { ...entry, load: demand ? "demand" : "start", ...(pinned ? { pinned } : {}) };
}

export function AddDialog({ names, add, onClose }: { names: string[]; add: (entry: Record<string, unknown>) => Promise<void>; onClose: () => void }) {
  const [kind, setKind] = useState<Kind>("local");
  const [values, setValues] = useState<Values>({});
  const [demand, setDemand] = useState(false);
  const [pinned, setPinned] = useState(false);
  const [capabilities, setCapabilities] = useState(USUAL);
  const [problem, setProblem] = useState<{ message: string; param: string | null } | null>(null);
  const [busy, setBusy] = useState(false);
  const of = (entries: Entry[]): Entry[] => entries.filter((one) => (one.kind ?? kind) === kind);
  const complete = of(ENTRIES).every((one) => !one.required || values[one.name]?.trim());
  const send = (): void => {
    setBusy(true);
    setProblem(null);
    add(entryOf(kind, values, { demand, pinned, capabilities })).then(onClose, (error: unknown) => {
      setProblem(problemOf(error));
      setBusy(false);
    });
  };
  const input = (entry: Entry, name = entry.name) => (
    <TextField
      key={name}
      {...entry}
      autofocus={entry.name === "name"}
      wrong={problem?.param === entry.name}
      value={values[name] ?? ""}
      onInput={(value) => setValues({ ...values, [name]: value })}
    />
  );
  return (
    <Dialog title="Add model" onClose={onClose} wide stay>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (complete && !busy) send();
        }}
      >
        <Segmented
          label="Kind"
          value={kind}
          options={[
            ["local", "On this server"],
            ["upstream", "Upstream"],
          ]}
          onChange={setKind}
        />
        <div class="fields">{of(ENTRIES).map((one) => input(one))}</div>
        {kind === "local" ? (
          <div class="row">
            <Check label="Load on the first request" checked={demand} onChange={setDemand} />
            <Check label="Pinned: never unloaded to make room" checked={pinned} onChange={setPinned} />
          </div>
        ) : (
          <Checks label="Capabilities" names={CAPABILITIES} chosen={capabilities} onChange={setCapabilities} />
        )}
        <details>
          <summary>Price in USD per million tokens</summary>
          <div class="fields">{PRICES.map((one) => input(one, `price.${one.name}`))}</div>
        </details>
        <details>
          <summary>More</summary>
          <div class="fields">{of(MORE).map((one) => input(one))}</div>
        </details>
        {names.includes(values.name?.trim() ?? "") && <p class="small muted">There is a model of this name.</p>}
        {problem && <Problem message={problem.message} />}
        <div class="row end">
          {busy && <span role="status">{kind === "local" && !demand ? "Loading… a download may take minutes." : "Adding…"}</span>}
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit" disabled={!complete || busy}>
            Add
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
