/** Measurements on this server by small requests, and the planner's answers. */
import { signal } from "@preact/signals";
import type { RequestDetail } from "../../lib/api";
import { errorMessage, fetchJson, request } from "../../lib/http";
import { facts } from "../../lib/live";
import type { Plan, Presets } from "../planner/api";

export interface Measured {
  tokens: number; // of the prompt
  ttft_us: number;
  prefill_us: number;
  token_us: number; // of a further token, mean
}

const SIZES = [16, 32, 64, 128, 256, 512, 1024];
const FURTHER = 8; // tokens behind the first
const LEAST_ID = 5; // special tokens are before that

export const measured = signal<Measured[]>([]);
export const measuring = signal(false);
export const problem = signal("");

/** One request per length, one after the other: new prompts, so that none is cached. */
export async function measure(abort: AbortSignal): Promise<void> {
  const known = facts.value;
  if (!known || measuring.value) return;
  measuring.value = true;
  problem.value = "";
  measured.value = [];
  try {
    for (const tokens of SIZES.filter((size) => size + FURTHER + 1 < known.engine.context)) {
      measured.value = [...measured.value, await measureOne(known.model.name, known.model.vocab_size, tokens, abort)];
    }
  } catch (error) {
    if (!abort.aborted) problem.value = errorMessage(error);
  } finally {
    measuring.value = false;
  }
}

async function measureOne(model: string, vocab: number, tokens: number, signal: AbortSignal): Promise<Measured> {
  const prompt = Array.from({ length: tokens }, () => LEAST_ID + Math.floor(Math.random() * (vocab - LEAST_ID)));
  const body = { model, prompt, max_tokens: 1 + FURTHER, ignore_eos: true, temperature: 0, stream: true };
  const response = await request("/v1/completions", { body, signal });
  const id = response.headers.get("x-request-id") ?? "";
  await response.text();
  for (;;) {
    const detail = await fetchJson<RequestDetail>(`/observe/requests/${encodeURIComponent(id)}`, { signal });
    if (detail.state === "done") {
      const us = (name: string): number => detail.stages.filter((stage) => stage.name === name).reduce((all, stage) => all + stage.us, 0);
      return { tokens, ttft_us: detail.ttft_us ?? 0, prefill_us: us("prefill"), token_us: us("decode") / FURTHER };
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export const fetchPresets = (): Promise<Presets> => fetchJson<Presets>("/plan/presets");

export const fetchPlan = (body: Record<string, unknown>): Promise<Plan> => fetchJson<Plan>("/plan", { body });

export const LENGTHS = [64, 256, 1024, 4096];

/** TTFT of the planner, by prompt length: microseconds. */
export async function plannedTtft(model: string, hardware: string): Promise<(readonly [number, number])[]> {
  const plans = await Promise.all(LENGTHS.map((prompt_tokens) => fetchPlan({ model, hardware, prompt_tokens, output_tokens: 16 })));
  return plans.flatMap((plan, place) => (plan.prefill ? [[LENGTHS[place]!, plan.prefill.expected_s * 1e6] as const] : []));
}
