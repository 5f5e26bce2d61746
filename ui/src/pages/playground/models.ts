/** The models to chat with, from /v1/models. */
import { computed, signal } from "@preact/signals";
import { fetchJson } from "../../lib/http";

export interface ModelCard {
  id: string;
  max_model_len: number | null;
  capabilities: string[];
  /** Sampling by the model's authors, which the server applies, and `max_tokens` for a chat, which it does not. */
  recommended: Record<string, number>;
}

/** Of models that recommend none. */
const MAX_TOKENS = 512;

export const models = signal<ModelCard[]>([]);

/** By base: adapters are served as base@adapter. */
export const modelGroups = computed(() => {
  const groups = new Map<string, ModelCard[]>();
  for (const model of models.value) {
    const base = model.id.split("@", 1)[0]!;
    groups.set(base, [...(groups.get(base) ?? []), model]);
  }
  return [...groups];
});

export const findModel = (id: string): ModelCard | undefined => models.value.find((model) => model.id === id);

/** What a chat with the model uses for parameters that are not set. */
export function recommended(id: string): Record<string, number> {
  return { max_tokens: MAX_TOKENS, ...findModel(id)?.recommended };
}

export async function loadModels(): Promise<void> {
  const { data } = await fetchJson<{ data: ModelCard[] }>("/v1/models");
  models.value = data.filter(({ capabilities }) => !capabilities.length || capabilities.includes("chat"));
  if (!models.value.length) models.value = data;
}
