/** The sampling parameters of the API, and the presets. Only what is set is sent; the rest is the server's default. */
import { effect, signal } from "@preact/signals";

export interface NumberParam {
  name: string;
  label: string;
  hint: string;
  min: number;
  max: number;
  step: number;
  /** The value that does nothing, where there is one. */
  neutral?: number;
  slider: boolean;
}

const slider = (name: string, label: string, min: number, max: number, step: number, neutral: number, hint: string): NumberParam => ({
  name,
  label,
  min,
  max,
  step,
  neutral,
  hint,
  slider: true,
});
const number = (name: string, label: string, min: number, max: number, hint: string): NumberParam => ({
  name,
  label,
  min,
  max,
  step: 1,
  hint,
  slider: false,
});

const MANY = 2 ** 31 - 1;

export const GROUPS: { title: string; open: boolean; params: NumberParam[] }[] = [
  {
    title: "Randomness",
    open: true,
    params: [
      slider("temperature", "Temperature", 0, 2, 0.05, 1, "How bold the draw is: 0 takes the likeliest token, always; above 1 the unlikely get a chance."),
      slider("top_p", "Top-p", 0.01, 1, 0.01, 1, "Draw from the likeliest tokens that have this share."),
      slider("top_k", "Top-k", 0, 200, 1, 0, "Draw from this many tokens; 0: all."),
      slider("min_p", "Min-p", 0, 1, 0.01, 0, "Leave out tokens below this share of the likeliest."),
      slider("typical_p", "Typical-p", 0.01, 1, 0.01, 1, "Draw from tokens about as surprising as the model expects: neither obvious nor odd."),
    ],
  },
  {
    title: "Repetition",
    open: false,
    params: [
      slider("repetition_penalty", "Repetition penalty", 0.5, 2, 0.01, 1, "Above 1: what has been said becomes less likely."),
      slider("presence_penalty", "Presence penalty", -2, 2, 0.05, 0, "Taken once from tokens that have been used."),
      slider("frequency_penalty", "Frequency penalty", -2, 2, 0.05, 0, "Taken for each use so far."),
    ],
  },
  {
    title: "Length",
    open: true,
    params: [
      number("max_tokens", "Most tokens", 1, MANY, "Default: to the end of the context."),
      number("min_tokens", "Fewest tokens", 0, MANY, "No end before this many."),
      number("timeout", "Time limit (s)", 1, 86400, "The answer ends as it is."),
    ],
  },
];

export const OTHER: NumberParam[] = [
  number("seed", "Seed", -(2 ** 53), 2 ** 53, "The same seed gives the same answer."),
  number("n", "Answers", 1, 8, "Several at once; switch between them below the answer."),
  number("priority", "Priority", -MANY, MANY, "Smaller goes first, where the server goes by priority."),
];

export type Values = Record<string, number>;
export const PRESETS: Record<string, { label: string; values: Values }> = {
  factual: { label: "Factual", values: { temperature: 0 } },
  code: { label: "Code", values: { temperature: 0.2, top_p: 0.95 } },
  chat: { label: "Chat", values: { temperature: 0.7, top_p: 0.9 } },
  creative: { label: "Creative", values: { temperature: 1.1, min_p: 0.08, presence_penalty: 0.3 } },
};
const PRESET_NAMES = [...new Set(Object.values(PRESETS).flatMap((preset) => Object.keys(preset.values)))];

export interface Settings {
  system: string;
  numbers: Values;
  stop: string; // one per line
  stopTokens: string; // ids with commas between
  bias: string; // "id: bias" per line
  ignoreEos: boolean;
  salt: string;
  probabilities: boolean;
}

const KEY = "penstock-playground";
const FRESH: Settings = {
  system: "",
  numbers: { max_tokens: 512 },
  stop: "",
  stopTokens: "",
  bias: "",
  ignoreEos: false,
  salt: "",
  probabilities: true,
};

function saved(): Settings {
  try {
    return { ...FRESH, ...(JSON.parse(sessionStorage.getItem(KEY) ?? "{}") as Partial<Settings>) };
  } catch {
    return FRESH;
  }
}

export const settings = signal<Settings>(saved());
effect(() => sessionStorage.setItem(KEY, JSON.stringify(settings.value)));

export function set(change: Partial<Settings>): void {
  settings.value = { ...settings.value, ...change };
}

export function setNumber(name: string, value: number | undefined): void {
  const numbers = { ...settings.value.numbers };
  if (value === undefined) delete numbers[name];
  else numbers[name] = value;
  set({ numbers });
}

export function usePreset(name: string): void {
  const numbers = { ...settings.value.numbers };
  for (const other of PRESET_NAMES) delete numbers[other];
  set({ numbers: { ...numbers, ...PRESETS[name]?.values } });
}

/** The preset the parameters are those of, if they are. */
export function presetInForce({ numbers }: Settings): string {
  const same = (values: Values): boolean => PRESET_NAMES.every((name) => numbers[name] === values[name]);
  return Object.keys(PRESETS).find((name) => same(PRESETS[name]!.values)) ?? "";
}

/** The settings as fields of a request. Throws an Error that says what cannot be read. */
export function fields(now: Settings): Record<string, unknown> {
  const body: Record<string, unknown> = { ...now.numbers };
  const stop = now.stop.split("\n").filter(Boolean).map(unescaped);
  if (stop.length) body.stop = stop;
  const ids = now.stopTokens.split(/[\s,]+/).filter(Boolean).map(id);
  if (ids.length) body.stop_token_ids = ids;
  const bias = now.bias.split("\n").filter((line) => line.trim());
  if (bias.length) body.logit_bias = Object.fromEntries(bias.map(biased));
  if (now.ignoreEos) body.ignore_eos = true;
  if (now.salt) body.cache_salt = now.salt;
  return body;
}

function unescaped(line: string): string {
  return line.replace(/\\n/g, "\n").replace(/\\t/g, "\t");
}

function id(text: string): number {
  if (!/^\d+$/.test(text)) throw new Error(`Stop tokens: “${text}” is not a token id.`);
  return Number(text);
}

function biased(line: string): [string, number] {
  const match = /^\s*(\d+)\s*[:=\s]\s*(-?[\d.]+)\s*$/.exec(line);
  if (!match?.[1] || !match[2]) throw new Error(`Logit bias: “${line}” is not “token id: bias”.`);
  return [match[1], Number(match[2])];
}
