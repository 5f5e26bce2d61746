import { effect, signal } from "@preact/signals";
import { ApiError, fetchJson, errorMessage } from "../../lib/http";
import type { Plan, Presets } from "./api";

export const CUSTOM = "custom";

export const presets = signal<Presets | null>(null);
export const plan = signal<Plan | null>(null);
export const problem = signal<{ message: string; param: string | null } | null>(null);

export const model = signal("");
export const hardware = signal("");
/** What was set by hand; everything else has the planner's default. */
export const choices = signal<Record<string, string>>({}); // weights, kv
export const numbers = signal<Record<string, number | null>>({});
export const ownModel = signal<Record<string, number>>({ layers: 80, hidden: 8192, intermediate: 28672, heads: 64, kv_heads: 8, head_dim: 128, vocab: 128256, context: 131072 });
export const ownHardware = signal<Record<string, number>>({ memory_gb: 80, bandwidth_tb_s: 3.35, tflops: 989, link_gb_s: 450 });

export function setNumber(name: string, value: number | null): void {
  numbers.value = { ...numbers.value, [name]: value };
}

export function setChoice(name: string, value: string): void {
  choices.value = { ...choices.value, [name]: value };
}

export function reset(): void {
  choices.value = {};
  numbers.value = {};
}

/** A field of the question as it was planned: set by hand, or the default for this model and hardware. */
export function asked(name: string): number | string | null {
  return numbers.value[name] ?? choices.value[name] ?? plan.value?.question[name] ?? null;
}

export async function loadPresets(): Promise<void> {
  try {
    const found = await fetchJson<Presets>("/plan/presets");
    presets.value = found;
    model.value ||= found.model;
    hardware.value ||= "this";
    problem.value = null;
  } catch (error) {
    problem.value = { message: errorMessage(error), param: null };
  }
}

/** The form as the server takes it. */
export function question(): Record<string, unknown> {
  const own = ownHardware.value;
  const set = Object.fromEntries(Object.entries({ ...choices.value, ...numbers.value }).filter(([, value]) => value !== null && value !== ""));
  return {
    model: model.value === CUSTOM ? { name: CUSTOM, ...ownModel.value } : model.value,
    hardware:
      hardware.value === CUSTOM
        ? { memory_bytes: own.memory_gb! * 1e9, bandwidth_bytes_s: own.bandwidth_tb_s! * 1e12, flops: own.tflops! * 1e12, link_bytes_s: own.link_gb_s! * 1e9 }
        : hardware.value,
    ...set,
  };
}

let abort: AbortController | null = null;

async function ask(asked: Record<string, unknown>): Promise<void> {
  abort?.abort();
  const own = (abort = new AbortController());
  try {
    plan.value = await fetchJson<Plan>("/plan", { body: asked, signal: own.signal });
    problem.value = null;
  } catch (error) {
    if (!own.signal.aborted) problem.value = { message: errorMessage(error), param: error instanceof ApiError ? error.param : null };
  }
}

/** Queries the server after each change, debounced. */
export function follow(): () => void {
  let timer = 0;
  if (!presets.value) void loadPresets();
  const stop = effect(() => {
    const asked = question();
    clearTimeout(timer);
    if (model.value && hardware.value) timer = window.setTimeout(() => void ask(asked), 200);
  });
  return () => {
    stop();
    clearTimeout(timer);
    abort?.abort();
  };
}
