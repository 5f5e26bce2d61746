/** Sampling by task, and warnings about settings that work against each other. */
import type { Values } from "./params";

export const PRESETS: Record<string, { label: string; values: Values; why: string }> = {
  model: { label: "Model’s own", values: {}, why: "What the model’s authors recommend; the server applies it to every request that leaves these out." },
  factual: { label: "Factual", values: { temperature: 0 }, why: "Always the most likely token: the same answer every time, no invention for variety’s sake." },
  code: { label: "Code", values: { temperature: 0.2, top_p: 0.95 }, why: "Close to the most likely token, as syntax forgives little, with room where several names would do." },
  chat: { label: "Chat", values: { temperature: 0.7, top_p: 0.9 }, why: "Varied wording; top-p cuts the tail of unlikely tokens, where nonsense begins." },
  creative: { label: "Creative", values: { temperature: 1, top_p: 0.95 }, why: "The model’s own distribution, less its least likely twentieth: surprising, still coherent." },
  brainstorm: { label: "Brainstorming", values: { temperature: 1.2, top_p: 1, min_p: 0.1 }, why: "A flatter distribution for unusual ideas; min-p drops tokens below a tenth of the best one, which top-p would let in." },
};
const NAMES = [...new Set(["top_k", "typical_p", ...Object.values(PRESETS).flatMap(({ values }) => Object.keys(values))])];

export function withPreset(numbers: Values, name: string): Values {
  const others = Object.entries(numbers).filter(([parameter]) => !NAMES.includes(parameter));
  return { ...Object.fromEntries(others), ...PRESETS[name]?.values };
}

/** The preset that matches the parameters, if any. */
export function activePreset(numbers: Values): string {
  const same = (values: Values): boolean => NAMES.every((name) => numbers[name] === values[name]);
  return Object.keys(PRESETS).find((name) => same(PRESETS[name]!.values)) ?? "";
}

/** `set`: what the user set; `own`: what the model recommends for the rest. */
export function conflicts(set: Values, own: Values): string[] {
  const value = (name: string, neutral: number): number => set[name] ?? own[name] ?? neutral;
  const given = (...names: string[]): boolean => names.some((name) => set[name] !== undefined);
  const temperature = value("temperature", 1);
  const [topP, topK, minP] = [value("top_p", 1), value("top_k", 0), value("min_p", 0)];
  const found: string[] = [];
  if (temperature === 0) {
    if (given("top_p", "top_k", "min_p", "typical_p"))
      found.push("Temperature 0 always takes the most likely token: top-p, top-k, min-p and typical-p change nothing.");
    if (value("n", 1) > 1) found.push("Temperature 0 gives n equal answers.");
  } else {
    if (topK > 0 && topP < 1 && given("top_k", "top_p"))
      found.push(`Top-k ${topK} and top-p ${topP} both cut: whichever keeps fewer tokens decides, and it differs from token to token. Set one.`);
    if (minP > 0 && topP < 1 && given("min_p", "top_p"))
      found.push(`Min-p ${minP} and top-p ${topP} both cut the tail. Set one.`);
    if (temperature > 1.2 && topP >= 0.99 && !topK && minP < 0.02)
      found.push(`Temperature ${temperature} with nothing cut off: two extremes, which often give word salad. Lower it, or set min-p.`);
    if (temperature <= 0.3 && (topP <= 0.3 || (topK > 0 && topK <= 3)) && given("temperature", "top_p", "top_k"))
      found.push("A low temperature and a narrow filter: two extremes, which leave nearly one token. Temperature 0 says so plainly.");
  }
  const penalties = [value("repetition_penalty", 1) > 1, value("presence_penalty", 0) > 0, value("frequency_penalty", 0) > 0];
  if (penalties.filter(Boolean).length > 1 && given("repetition_penalty", "presence_penalty", "frequency_penalty"))
    found.push("Several penalties add up on the same tokens. Set one.");
  if (value("repetition_penalty", 1) > 1.4) found.push("Such a repetition penalty also hits words that every sentence needs.");
  if (value("presence_penalty", 0) < 0 || value("frequency_penalty", 0) < 0 || value("repetition_penalty", 1) < 1)
    found.push("This penalty rewards repetition: answers may loop.");
  if (set.min_tokens !== undefined && set.min_tokens > value("max_tokens", Infinity)) found.push("min_tokens is larger than max_tokens.");
  return found;
}
