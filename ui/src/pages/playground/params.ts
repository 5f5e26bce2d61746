/** Sampling parameters and presets. Only set parameters are sent; the rest are the server's defaults. */
export interface NumberParam {
  name: string;
  label: string;
  hint: string;
  min: number;
  max: number;
  step: number;
  /** The value that has no effect, if there is one. */
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
    title: "Sampling",
    open: true,
    params: [
      slider("temperature", "Temperature", 0, 2, 0.05, 1, "0: greedy. Below 1 sharpens the distribution, above 1 flattens it."),
      slider("top_p", "Top-p", 0.01, 1, 0.01, 1, "Keep the smallest set of tokens with this cumulative probability."),
      slider("top_k", "Top-k", 0, 200, 1, 0, "Keep the k most likely tokens; 0: all."),
      slider("min_p", "Min-p", 0, 1, 0.01, 0, "Drop tokens below this fraction of the highest probability."),
      slider("typical_p", "Typical-p", 0.01, 1, 0.01, 1, "Keep tokens whose surprisal is closest to the entropy."),
    ],
  },
  {
    title: "Penalties",
    open: false,
    params: [
      slider("repetition_penalty", "Repetition penalty", 0.5, 2, 0.01, 1, "Above 1: tokens that occurred become less likely."),
      slider("presence_penalty", "Presence penalty", -2, 2, 0.05, 0, "Subtracted once from the logit of tokens that occurred."),
      slider("frequency_penalty", "Frequency penalty", -2, 2, 0.05, 0, "Subtracted per occurrence."),
    ],
  },
  {
    title: "Length",
    open: true,
    params: [
      number("max_tokens", "max_tokens", 1, MANY, "Default: what the model recommends for a chat."),
      number("min_tokens", "min_tokens", 0, MANY, "Do not stop before this many."),
      number("timeout", "Timeout (s)", 1, 86400, "Returns the output so far."),
    ],
  },
];

export const OTHER: NumberParam[] = [
  number("seed", "Seed", -(2 ** 53), 2 ** 53, "The same seed gives the same output."),
  number("n", "n", 1, 8, "Choices per request; switch below the response."),
  number("priority", "Priority", -MANY, MANY, "Smaller runs first, under --policy priority."),
];

export type Values = Record<string, number>;

export interface Settings {
  system: string;
  numbers: Values;
  stop: string; // one per line
  stopTokens: string; // comma-separated ids
  bias: string; // "id: bias" per line
  ignoreEos: boolean;
  salt: string;
  probabilities: boolean;
  drafts: boolean; // speculation, where the server has it
  format: "text" | "json" | "schema";
  schema: string; // JSON
  tools: Tool[];
  toolChoice: "auto" | "required" | "none";
  history: "" | "drop_oldest" | "keep_first" | "summarize"; // "": an error if the conversation is too long
  budget: number | null; // tokens of prompt and answer together
}

/** A function that the user answers for by hand. */
export interface Tool {
  name: string;
  description: string;
  parameters: string; // JSON schema
}

export const FRESH: Settings = {
  system: "",
  numbers: {},
  stop: "",
  stopTokens: "",
  bias: "",
  ignoreEos: false,
  salt: "",
  probabilities: true,
  drafts: true,
  format: "text",
  schema: "",
  tools: [],
  toolChoice: "auto",
  history: "",
  budget: null,
};

/** Request fields of the settings. Throws an Error if an input is invalid. */
export function fields(now: Settings): Record<string, unknown> {
  const body: Record<string, unknown> = { ...now.numbers };
  const stop = now.stop.split("\n").filter(Boolean).map(unescapeLine);
  if (stop.length) body.stop = stop;
  const ids = now.stopTokens.split(/[\s,]+/).filter(Boolean).map(id);
  if (ids.length) body.stop_token_ids = ids;
  const bias = now.bias.split("\n").filter((line) => line.trim());
  if (bias.length) body.logit_bias = Object.fromEntries(bias.map(parseBias));
  if (now.ignoreEos) body.ignore_eos = true;
  if (now.salt) body.cache_salt = now.salt;
  if (!now.drafts) body.speculation = false;
  if (now.format === "json") body.response_format = { type: "json_object" };
  if (now.format === "schema" && now.schema.trim()) {
    const schema = parseJson(now.schema, "JSON schema");
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  }
  return body;
}

export function parseJson(text: string, what: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch (error) {
    throw new Error(`${what}: ${error instanceof Error ? error.message : "not JSON"}`);
  }
}

function unescapeLine(line: string): string {
  return line.replace(/\\n/g, "\n").replace(/\\t/g, "\t");
}

function id(text: string): number {
  if (!/^\d+$/.test(text)) throw new Error(`Stop token ids: “${text}” is not a token id.`);
  return Number(text);
}

function parseBias(line: string): [string, number] {
  const match = /^\s*(\d+)\s*[:=\s]\s*(-?[\d.]+)\s*$/.exec(line);
  if (!match?.[1] || !match[2]) throw new Error(`Logit bias: “${line}” is not “token id: bias”.`);
  return [match[1], Number(match[2])];
}
