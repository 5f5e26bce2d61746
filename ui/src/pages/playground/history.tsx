/** The conversations kept in this browser: open, search, rename, export, import, delete. */
import { useEffect, useRef, useState } from "preact/hooks";
import { readText, saveFile } from "../../lib/files";
import { ago } from "../../lib/format";
import { errorMessage } from "../../lib/http";
import { useEscape } from "../../lib/shortcuts";
import { Button, Problem } from "../../parts/basics";
import { Confirm } from "../../parts/dialog";
import { Check } from "../../parts/form";
import * as store from "./conversations";
import { pathTo } from "./message";
import { fromSaved, toMarkdown } from "./saved";

const MAX_IMPORT_BYTES = 20 << 20;

export function History({ onOpen, onClose }: { onOpen: () => void; onClose: () => void }) {
  const [query, setQuery] = useState("");
  const [problem, setProblem] = useState("");
  const [doomed, setDoomed] = useState<store.Listed[] | null>(null);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => void store.loadList(), []);
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = store.list.value.filter((one) => {
    const text = `${one.title}\n${one.text}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const attempt = (work: Promise<unknown>): void => void work.then(() => setProblem(""), (error: unknown) => setProblem(errorMessage(error)));
  return (
    <aside class="history" aria-label="Conversations">
      <div class="panel-head">
        <h2>Conversations</h2>
        <Button icon="close" kind="quiet" label="Close conversations" onClick={onClose} />
      </div>
      <input type="search" aria-label="Search conversations" placeholder="Search" value={query} onInput={(event) => setQuery(event.currentTarget.value)} />
      {(problem || store.storeProblem.value) && <Problem message={problem || store.storeProblem.value} />}
      <ul class="conversations">
        {found.map((one) => (
          <Entry key={one.id} one={one} attempt={attempt} onOpen={onOpen} onDelete={() => setDoomed([one])} />
        ))}
        {!found.length && <li class="muted small">{query ? "None has these words." : "None yet."}</li>}
      </ul>
      <div class="row">
        <Button onClick={() => input.current?.click()}>Import</Button>
        <Button kind="danger" disabled={!store.list.value.length} onClick={() => setDoomed(store.list.value)}>
          Delete all
        </Button>
        <input
          ref={input}
          hidden
          type="file"
          accept=".json,application/json"
          aria-label="Import a conversation"
          onChange={({ currentTarget }) => {
            const file = currentTarget.files?.[0];
            if (file) attempt(readText(file, MAX_IMPORT_BYTES).then(store.importConversation).then(onOpen));
            currentTarget.value = "";
          }}
        />
      </div>
      <Check label="Keep conversations in this browser" checked={store.keeping.value} onChange={store.setKeeping} />
      <p class="small muted">The newest {store.MAX_CONVERSATIONS} are kept, in this browser only.</p>
      {doomed && (
        <Confirm
          title={doomed.length > 1 ? `Delete ${doomed.length} conversations?` : "Delete this conversation?"}
          action="Delete"
          run={() => store.remove(...doomed.map(({ id }) => id))}
          onClose={() => setDoomed(null)}
        >
          {doomed.length > 1 ? "They are gone for good." : doomed[0]!.title}
        </Confirm>
      )}
    </aside>
  );
}

interface EntryProps {
  one: store.Listed;
  attempt: (work: Promise<unknown>) => void;
  onOpen: () => void;
  onDelete: () => void;
}

function Entry({ one, attempt, onOpen, onDelete }: EntryProps) {
  const [name, setName] = useState<string | null>(null);
  const [shown, setShown] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.select(), [name === null]);
  useEscape(name !== null, () => setName(null));
  const here = store.current.value?.id === one.id;
  if (name !== null)
    return (
      <li>
        <form
          onSubmit={(event) => {
            event.preventDefault();
            if (name.trim()) attempt(store.rename(one, name.trim().slice(0, 200)));
            setName(null);
          }}
        >
          <input ref={field} aria-label="Name of the conversation" value={name} onInput={(event) => setName(event.currentTarget.value)} onBlur={() => setName(null)} />
        </form>
      </li>
    );
  return (
    <li data-here={here}>
      <button type="button" class="open-conversation" aria-current={here ? "true" : undefined} onClick={() => attempt(store.open(one).then(onOpen))}>
        <span class="ellipsis" dir="auto">
          {one.title}
        </span>
        <small>{ago(one.updated / 1000)}</small>
      </button>
      <Button icon="more" kind="quiet" label={`Actions for ${one.title}`} aria-expanded={shown} onClick={() => setShown(!shown)} />
      {shown && (
        <div class="entry-actions">
          <Button kind="quiet" onClick={() => (setShown(false), setName(one.title))}>
            Rename
          </Button>
          <Button kind="quiet" onClick={() => attempt(exportJson(one))}>
            JSON
          </Button>
          <Button kind="quiet" onClick={() => attempt(exportMarkdown(one))}>
            Markdown
          </Button>
          <Button kind="quiet" onClick={onDelete}>
            Delete
          </Button>
        </div>
      )}
    </li>
  );
}

const fileName = (title: string): string => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";

async function exportJson(one: store.Listed): Promise<void> {
  saveFile(JSON.stringify(await store.readBody(one.id), null, 1), `${fileName(one.title)}.json`);
}

async function exportMarkdown(one: store.Listed): Promise<void> {
  const { last } = fromSaved(await store.readBody(one.id));
  saveFile(toMarkdown(one.title, pathTo(last)), `${fileName(one.title)}.md`);
}
