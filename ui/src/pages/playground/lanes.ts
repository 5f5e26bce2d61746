/** One lane, or two beside each other: each has a model, parameters and its own way through the conversation. */
import { computed, effect, type Signal, signal } from "@preact/signals";
import type { Message } from "./message";
import { findModel, models } from "./models";
import { FRESH, type Settings } from "./params";

export class Lane {
  readonly settings: Signal<Settings>;
  readonly model = signal("");
  /** Of each message, the reply that is shown; null: of the beginning. */
  readonly chosen = signal<Map<Message | null, Message>>(new Map());
  readonly running = signal<AbortController | null>(null);

  readonly thread = computed(() => {
    const path: Message[] = [];
    for (let at: Message | undefined; (at = this.chosen.value.get(path.at(-1) ?? null)); ) path.push(at);
    return path;
  });

  constructor(
    readonly name: string,
    key: string,
  ) {
    this.settings = signal(stored(key));
    effect(() => sessionStorage.setItem(key, JSON.stringify(this.settings.value)));
    effect(() => {
      if (models.value.length && !findModel(this.model.peek())) this.model.value = models.value[0]!.id;
    });
  }
}

function stored(key: string): Settings {
  try {
    return { ...FRESH, ...(JSON.parse(sessionStorage.getItem(key) ?? "{}") as Partial<Settings>) };
  } catch {
    return FRESH;
  }
}

const A = new Lane("A", "penstock-playground");
const B = new Lane("B", "penstock-playground-b");
export const comparing = signal(false);
/** The lane whose parameters the panel shows. */
export const edited = signal<Lane>(A);
export const lanes = computed(() => (comparing.value ? [A, B] : [A]));
export const main = A;
export const busy = computed(() => A.running.value !== null || B.running.value !== null);

/** The second lane begins as a copy of the first. */
export function startComparing(): void {
  B.settings.value = A.settings.value;
  B.model.value = A.model.value;
  B.chosen.value = new Map(A.chosen.value);
  comparing.value = true;
  edited.value = B;
}

/** One lane again: that of `kept`, whose conversation goes on. The other's answers stay as branches. */
export function stopComparing(kept: Lane = A): void {
  B.running.value?.abort();
  if (kept === B) {
    A.running.value?.abort();
    A.settings.value = B.settings.value;
    A.model.value = B.model.value;
    A.chosen.value = B.chosen.value;
  }
  comparing.value = false;
  edited.value = A;
}

export function set(change: Partial<Settings>, lane: Lane = edited.value): void {
  lane.settings.value = { ...lane.settings.value, ...change };
}

export function setNumber(name: string, value: number | undefined): void {
  const numbers = { ...edited.value.settings.value.numbers };
  if (value === undefined) delete numbers[name];
  else numbers[name] = value;
  set({ numbers });
}
