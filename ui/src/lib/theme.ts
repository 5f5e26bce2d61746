/** Theme: light, dark, or system. */
import { computed, effect, signal } from "@preact/signals";

export type Choice = "system" | "light" | "dark";
const KEY = "penstock-theme";
const media = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(media.matches);
media.addEventListener("change", (event) => (systemDark.value = event.matches));

const saved = localStorage.getItem(KEY);
export const themeChoice = signal<Choice>(saved === "light" || saved === "dark" ? saved : "system");
export const theme = computed<"light" | "dark">(() =>
  themeChoice.value === "system" ? (systemDark.value ? "dark" : "light") : themeChoice.value,
);

effect(() => {
  document.documentElement.dataset.theme = theme.value;
});

export function nextTheme(): void {
  const order: Choice[] = ["system", "light", "dark"];
  const next = order[(order.indexOf(themeChoice.value) + 1) % 3] ?? "system";
  themeChoice.value = next;
  if (next === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, next);
}

/** A colour of the design system, for canvases. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
