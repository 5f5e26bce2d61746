/** JSON as a tree that can be folded. Bounded: a large value shows its beginning. */
import { useMemo, useState } from "preact/hooks";

const MAX_CHARACTERS = 500_000;
const SHOWN = 100; // members of an object or list, at first
const SMALL = 4000; // characters; of a larger value only the outermost level is open
const LONGEST_TEXT = 2000;
const DEEPEST = 40;

/** The value of a text that is JSON as a whole; undefined otherwise. */
export function parsed(text: string): unknown {
  if (text.length > MAX_CHARACTERS) return undefined;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

export function JsonTree({ value }: { value: unknown }) {
  const openDepth = useMemo(() => (JSON.stringify(value).length <= SMALL ? 4 : 1), [value]);
  return (
    <div class="json-tree mono" dir="ltr">
      <Value value={value} depth={0} openDepth={openDepth} />
    </div>
  );
}

function Value({ value, name, depth, openDepth }: { value: unknown; name?: string; depth: number; openDepth: number }) {
  const [unfolded, setUnfolded] = useState(depth < openDepth); // what is folded is not drawn
  const key = name !== undefined && <span class="json-key">{name}: </span>;
  if (typeof value !== "object" || value === null)
    return (
      <div>
        {key}
        <span class={`json-${value === null ? "null" : typeof value}`}>{scalar(value)}</span>
      </div>
    );
  const entries = Array.isArray(value) ? value.map((item, place) => [String(place), item] as const) : Object.entries(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!entries.length || depth >= DEEPEST)
    return (
      <div>
        {key}
        {entries.length ? `${open}…${close}` : `${open}${close}`}
      </div>
    );
  return (
    <details open={unfolded} onToggle={(event) => setUnfolded(event.currentTarget.open)}>
      <summary>
        {key}
        <span class="muted">
          {open} {entries.length} {close}
        </span>
      </summary>
      {unfolded && <Members entries={entries} depth={depth + 1} openDepth={openDepth} />}
    </details>
  );
}

function Members({ entries, depth, openDepth }: { entries: (readonly [string, unknown])[]; depth: number; openDepth: number }) {
  const [shown, setShown] = useState(SHOWN);
  return (
    <div class="json-members">
      {entries.slice(0, shown).map(([name, item]) => (
        <Value key={name} name={name} value={item} depth={depth} openDepth={openDepth} />
      ))}
      {entries.length > shown && (
        <button type="button" class="button quiet" onClick={() => setShown(shown + 10 * SHOWN)}>
          {entries.length - shown} more
        </button>
      )}
    </div>
  );
}

function scalar(value: unknown): string {
  if (typeof value !== "string") return String(value);
  return JSON.stringify(value.length > LONGEST_TEXT ? `${value.slice(0, LONGEST_TEXT)}…` : value);
}
