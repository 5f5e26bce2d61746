import { groups, helpShown } from "../lib/shortcuts";
import { Dialog } from "./dialog";

const NAMES: Record<string, string> = {
  mod: navigator.platform.startsWith("Mac") ? "⌘" : "Ctrl",
  Escape: "Esc",
  ArrowLeft: "←",
  ArrowRight: "→",
  ArrowUp: "↑",
  ArrowDown: "↓",
  " ": "Space",
};

export function Keys({ keys }: { keys: string }) {
  return (
    <span class="keys">
      {keys.split("+").map((key) => (
        <kbd key={key}>{NAMES[key] ?? (key || "+")}</kbd>
      ))}
    </span>
  );
}

export function Help() {
  if (!helpShown.value) return null;
  return (
    <Dialog title="Keyboard shortcuts" onClose={() => (helpShown.value = false)}>
      <div class="help">
        {groups.value.map((group) => (
          <section key={group.title}>
            <h3>{group.title}</h3>
            <dl>
              {group.shortcuts.map((shortcut) => (
                <div key={shortcut.keys}>
                  <dt>
                    <Keys keys={shortcut.keys} />
                  </dt>
                  <dd>{shortcut.label}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </Dialog>
  );
}
