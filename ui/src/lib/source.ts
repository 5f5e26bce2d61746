/** The model and replica that pages about one engine show. */
import { signal } from "@preact/signals";

export interface Source {
  model: string;
  replica: number;
}

/** null: the server's default. */
export const source = signal<Source | null>(null);

/** A path of /observe, about the chosen engine. */
export function ofSource(path: string): string {
  if (!source.value) return path;
  const query = `model=${encodeURIComponent(source.value.model)}&replica=${source.value.replica}`;
  return `${path}${path.includes("?") ? "&" : "?"}${query}`;
}

/** What a request body names the model with. */
export function ofModel(): { model?: string } {
  return source.value ? { model: source.value.model } : {};
}
