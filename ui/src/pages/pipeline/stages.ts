/** The stages of the pipeline in their order, each with its explanation. The names are those of /observe/pipeline. */

export type Lane = "in" | "engine" | "out";

export interface StageText {
  name: string;
  title: string;
  lane: Lane;
  colour: string;
  what: string;
  why: string;
  formula?: string;
  file: string;
  page?: readonly [hash: string, title: string];
  /** Why nothing passes here, where a setting says so. */
  off?: string;
}

export const LANES: Record<Lane, string> = { in: "Frontend, way in", engine: "Engine", out: "Frontend, way out" };

export const STAGES: readonly StageText[] = [
  {
    name: "auth",
    title: "Auth",
    lane: "in",
    colour: "intake",
    what: "The API key becomes an identity: tenant, scopes, models, tier and weight.",
    why: "All later stages act for a tenant. Keys are held in memory, so that no request waits for a database.",
    formula: "identity = keys[hash(key)]",
    file: "http/middleware/auth.py",
    page: ["keys", "Keys"],
    off: "This server has no API keys: everybody is the same tenant.",
  },
  {
    name: "limits",
    title: "Limits",
    lane: "in",
    colour: "intake",
    what: "The most that the request can use is reserved: requests, tokens and dollars, of its key and of its tenant.",
    why: "A check without a reservation lets a burst through. What is not used is given back at the end.",
    formula: "reserved = prompt + choices × max_tokens",
    file: "gateway/accounting.py",
    page: ["keys", "Keys"],
    off: "Limits need stored keys: start the server with --keys.",
  },
  {
    name: "validate",
    title: "Validate",
    lane: "in",
    colour: "intake",
    what: "The body is read, parsed and checked, and becomes one Request, the same for all APIs.",
    why: "Everything that is wrong is a 400 that names the field, before any model time is spent.",
    file: "http/parse/schema.py",
    page: ["requests", "Requests"],
  },
  {
    name: "context",
    title: "Context",
    lane: "in",
    colour: "intake",
    what: "With documents or a token budget: parts of the prompt are ranked, cut, summarized and placed so that they fit.",
    why: "A prompt that is too long fails or pushes out what matters. Here its author decides what goes first.",
    formula: "prompt ≤ context − reserved output",
    file: "gateway/context/builder.py",
    page: ["planner", "Planner"],
  },
  {
    name: "route",
    title: "Route",
    lane: "in",
    colour: "intake",
    what: "A policy picks the replica or model: by cached prefix, load, TTFT, price or size. Fallbacks take over failures.",
    why: "The replica that has the prefix computes less. With one replica there is nothing to decide.",
    formula: "score = uncached prompt tokens + queued tokens",
    file: "gateway/router.py",
    page: ["models", "Models"],
  },
  {
    name: "template",
    title: "Template",
    lane: "in",
    colour: "intake",
    what: "The model’s chat template turns messages and tools into one text.",
    why: "A model only continues texts of the form it was trained on. Templates come with weights, so they run in a sandbox.",
    file: "prompt/template.py",
    page: ["playground", "Playground"],
  },
  {
    name: "tokenize",
    title: "Tokenize",
    lane: "in",
    colour: "intake",
    what: "The text becomes token ids of the model’s vocabulary. Prompts that arrive together are tokenized together.",
    why: "The network computes with ids. A token of English is about four characters.",
    formula: "text → ids < vocab_size",
    file: "tokenize/tokenizer.py",
    page: ["planner", "Planner"],
  },
  {
    name: "queue",
    title: "Queue",
    lane: "engine",
    colour: "wait",
    what: "The sequence waits for a slot, KV blocks, a share of the step’s token budget, or its turn among tenants.",
    why: "The batch has room for max_sequences. The planner admits by policy and fair share, at every step.",
    formula: "wait ≈ sequences ahead × mean service time ÷ slots",
    file: "schedule/planner.py",
    page: ["batch", "Batch"],
  },
  {
    name: "prefill",
    title: "Prefill",
    lane: "engine",
    colour: "prefill",
    what: "Keys and values of all prompt tokens are computed, many per step. Blocks that the prefix cache has are skipped.",
    why: "It decides TTFT. Many tokens share each read of the weights, so prefill is bound by arithmetic.",
    formula: "FLOPs ≈ 2 × parameters × (prompt − cached)",
    file: "schedule/planner.py",
    page: ["cache", "Cache"],
  },
  {
    name: "decode",
    title: "Decode",
    lane: "engine",
    colour: "decode",
    what: "One forward pass per step computes the next token of every running sequence.",
    why: "A step reads all weights once, whatever the batch: decode is bound by memory bandwidth, and batching pays.",
    formula: "step ≥ (weights + KV of the batch) ÷ bandwidth",
    file: "engine/loop.py",
    page: ["batch", "Batch"],
  },
  {
    name: "sample",
    title: "Sample",
    lane: "engine",
    colour: "decode",
    what: "Logits pass penalties, constraint, temperature and filters; one token is drawn with noise of the request’s seed.",
    why: "The draw depends on the request alone, so batching cannot change an answer. It is the last operation of the step.",
    formula: "token = argmax(logit ÷ T + Gumbel(seed, position))",
    file: "sample/__init__.py",
    page: ["lab", "Sampling lab"],
  },
  {
    name: "speculate",
    title: "Speculate",
    lane: "engine",
    colour: "decode",
    what: "Cheap drafts of the next tokens are checked in the same forward pass; those that equal the drawn tokens are kept.",
    why: "Checking k drafts reads the weights once, as one token does. Output is the same with and without.",
    formula: "tokens per step = 1 + accepted drafts",
    file: "speculate/drafter.py",
    page: ["playground", "Playground"],
    off: "Speculation is off: see --speculate.",
  },
  {
    name: "detokenize",
    title: "Detokenize",
    lane: "out",
    colour: "output",
    what: "Ids become text that no later token can change; stop strings, reasoning and tool calls are found.",
    why: "A token may end inside a character or a stop string: such text is held back until it is certain.",
    file: "tokenize/detokenize.py",
    page: ["requests", "Requests"],
  },
  {
    name: "stream",
    title: "Stream",
    lane: "out",
    colour: "output",
    what: "Each piece of text is written to the client’s socket as a server-sent event, or all of it as one JSON body.",
    why: "The first words arrive at TTFT, not at the end. A client that does not read never holds up others.",
    file: "http/streaming.py",
    page: ["requests", "Requests"],
  },
  {
    name: "ledger",
    title: "Ledger",
    lane: "out",
    colour: "output",
    what: "Usage and cost are recorded, and the reservation is settled, before the client gets the end of its answer.",
    why: "What was delivered is on record, also if the server dies a moment later.",
    formula: "cost = Σ tokens × price",
    file: "gateway/ledger/ledger.py",
    page: ["usage", "Usage"],
    off: "Usage is recorded with --ledger or --keys.",
  },
];
