/** The system prompt, and those that were saved in this browser. */
import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { Button, Field } from "../../parts/basics";
import { edited, set } from "./lanes";

const KEY = "penstock-system-prompts";
const MAX_PROMPTS = 50;
const MAX_TEXT = 20_000; // characters

interface Saved {
  name: string;
  text: string;
}

function stored(): Saved[] {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]") as unknown;
    if (!Array.isArray(found)) return [];
    return found.filter((one: unknown): one is Saved => typeof (one as Saved)?.name === "string" && typeof (one as Saved).text === "string");
  } catch {
    return [];
  }
}

const prompts = signal<Saved[]>(stored());

/** False if the browser has no room for them. */
function keep(next: Saved[]): boolean {
  try {
    localStorage.setItem(KEY, JSON.stringify(next.slice(0, MAX_PROMPTS)));
  } catch {
    return false;
  }
  prompts.value = next.slice(0, MAX_PROMPTS);
  return true;
}

export function SystemPrompt() {
  const { system } = edited.value.settings.value;
  const [full, setFull] = useState(false);
  const chosen = prompts.value.find(({ text }) => text === system);
  const save = (): void => {
    const text = system.slice(0, MAX_TEXT);
    const name = text.trim().split("\n")[0]!.slice(0, 60);
    setFull(!keep([{ name, text }, ...prompts.value.filter((other) => other.text !== text)]));
  };
  return (
    <div class="stack tight">
      <Field label="System prompt">
        {(id) => (
          <textarea id={id} rows={3} placeholder="Instructions for the model" value={system} onInput={(event) => set({ system: event.currentTarget.value })} />
        )}
      </Field>
      <div class="row">
        {prompts.value.length > 0 && (
          <select
            aria-label="Saved system prompts"
            value={chosen ? String(prompts.value.indexOf(chosen)) : ""}
            onChange={(event) => set({ system: prompts.value[Number(event.currentTarget.value)]?.text ?? "" })}
          >
            <option value="">Saved prompts…</option>
            {prompts.value.map(({ name }, place) => (
              <option key={place} value={String(place)}>
                {name}
              </option>
            ))}
          </select>
        )}
        {chosen ? (
          <Button icon="trash" kind="quiet" label="Forget this system prompt" onClick={() => keep(prompts.value.filter((other) => other !== chosen))} />
        ) : (
          system.trim() && <Button onClick={save}>Save</Button>
        )}
      </div>
      {full && <p role="alert">The browser has no room for it.</p>}
    </div>
  );
}
