/** First questions that a model of any size does well, and such that show something. */
import type { Lane } from "./lanes";
import { set } from "./lanes";
import { FRESH, type Settings } from "./params";

export interface Sample {
  label: string;
  text: string;
  note: string;
  settings?: Partial<Settings>;
}

const PERSON = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" }, city: { type: "string" } },
  required: ["name", "age", "city"],
  additionalProperties: false,
};

const PASSAGE =
  "The water wheel turns slowly in the stream. The stream comes down from the hills. The hills are green in spring and brown in autumn. " +
  "In autumn the water wheel turns fast, because the stream carries the rain of the hills.";

export const SAMPLES: Sample[] = [
  { label: "Ask for a fact", text: "What is the capital of France?", note: "Short questions suit small models best." },
  { label: "Explain something", text: "Why is the sky blue? Answer in two sentences.", note: "A length in the question keeps the answer short." },
  { label: "Rewrite a text", text: `Repeat this text exactly, word for word:\n\n${PASSAGE}`, note: "Much of the answer is in the prompt: speculation drafts it (Steps)." },
  {
    label: "Extract JSON",
    text: "Mia Lund, 31 years old, lives in Oslo. Extract the person.",
    note: "A JSON schema holds the answer to its form, and it is checked here.",
    settings: { format: "schema", schema: JSON.stringify(PERSON, null, 2) },
  },
  { label: "Write a story", text: "Tell me a very short story about a lighthouse.", note: "Try the presets: creative needs more temperature than facts." },
];

export function applySample(sample: Sample, lanes: readonly Lane[]): void {
  for (const lane of lanes) {
    const { format, schema } = { ...FRESH, ...sample.settings };
    set({ format, schema }, lane);
  }
}
