/** Keyboard shortcuts: pages register theirs while they are shown, the help overlay lists what is registered. */
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

export interface Shortcut {
  keys: string; // "?", "Escape", "mod+Enter"
  label: string;
  run: () => void;
  whileTyping?: boolean;
}
export interface Group {
  title: string;
  shortcuts: Shortcut[];
}

export const groups = signal<Group[]>([]);
export const helpShown = signal(false);
type Close = () => boolean | void; // false: it is closed already, and the key means something to what lies below
const layers: { close: Close }[] = []; // open overlays, topmost last

function matches(event: KeyboardEvent, keys: string): boolean {
  const parts = keys.split("+");
  const key = parts.pop() || "+";
  const mod = parts.includes("mod");
  if (mod !== (event.ctrlKey || event.metaKey) || event.altKey) return false;
  return event.key.toLowerCase() === key.toLowerCase();
}

function typing(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return !["checkbox", "radio", "range", "button"].includes(target.type);
  return target.isContentEditable || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && layers.toReversed().some((layer) => layer.close() !== false)) {
    event.preventDefault();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const inText = typing(event.target);
  for (const group of groups.value.toReversed())
    for (const shortcut of group.shortcuts)
      if ((!inText || shortcut.whileTyping) && matches(event, shortcut.keys)) {
        event.preventDefault();
        shortcut.run();
        return;
      }
});

/** While `shown`, Escape closes this before it means anything to the page: dialogs, popovers, drawers, open editors. */
export function useEscape(shown: boolean, close: Close): void {
  const latest = useRef(close);
  latest.current = close;
  useLayoutEffect(() => {
    if (!shown) return;
    const layer = { close: () => latest.current() };
    layers.push(layer);
    return () => void layers.splice(layers.indexOf(layer), 1);
  }, [shown]);
}

/** Registers them while the component is shown. `run` is looked up when a key is pressed, so it may close over state. */
export function useShortcuts(title: string, shortcuts: Shortcut[]): void {
  const latest = useRef(shortcuts);
  latest.current = shortcuts;
  useEffect(() => {
    const group: Group = {
      title,
      shortcuts: shortcuts.map((shortcut, place) => ({ ...shortcut, run: () => latest.current[place]?.run() })),
    };
    groups.value = [...groups.value, group];
    return () => {
      groups.value = groups.value.filter((other) => other !== group);
    };
  }, []);
}
