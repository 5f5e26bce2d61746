/** What the words on each page mean, for those who meet them here. */

export type Term = readonly [name: string, meaning: string];

export const LESSONS = {
  playground: [
    ["Token", "A piece of a word. Text is cut into tokens before the model reads it, and written one token at a time."],
    ["First token", "How long it took until something could be read: the way to the server, the queue, and prefill, which reads the prompt."],
    ["Tokens per second", "How fast the answer was written behind its first token. All requests that run share the machine."],
    ["Cached", "Tokens of the prompt that were computed for an earlier one that begins alike, and not again."],
    ["Confidence", "The geometric mean of the probabilities that the model gave the tokens it wrote."],
  ],
  requests: [
    ["Prompt, output", "Tokens read and tokens written. A token is a piece of a word."],
    ["Cached", "Prompt tokens whose keys and values were in the cache from an earlier prompt that begins alike: not computed again."],
    ["First token", "From the request’s arrival to the first token of its answer; often called TTFT."],
    ["The bar", "Shares of the total: waiting to be let in, reading the prompt (prefill), writing the answer a token at a time (decode)."],
    ["State", "Where it is, or why it ended. “End” is the model’s own end, “length” the most tokens that were asked for."],
  ],
  batch: [
    ["Step", "One pass of the model over all requests in the batch. Steps follow each other as long as there is work."],
    ["Prefill", "Reading a prompt: many tokens of it in one step, which makes that step long. Long prompts come in pieces."],
    ["Decode", "Writing: one token for each request a step. A step reads all of the weights, for one request as for many: that is why batching pays."],
    ["Continuous batching", "A request joins at the next step and leaves when it is done; nobody waits for a whole batch to end."],
    ["Preempted", "Put back in line since the KV cache was full. What it had is computed again later."],
    ["Step time", "A dark tip marks a step that took longer than the strip is high."],
  ],
  cache: [
    ["KV cache", "The keys and values of all earlier tokens. Each new token looks back at them, so they are kept rather than computed anew."],
    ["Page", "Room for the keys and values of a few tokens. A request takes pages as it grows, wherever they are free."],
    ["Prefix", "Prompts that begin alike have the same keys and values there: a later one finds those pages and skips that part of its prefill."],
    ["Evicted", "Where no page is free, the cached one that was used longest ago gives way."],
    ["Resting", "Given back, but a step under way may still touch it."],
  ],
  lab: [
    ["Logit", "The model’s score of a token, one for each in its vocabulary. Softmax makes probabilities of them."],
    ["Temperature", "Divides the logits: below 1 what is likely becomes likelier, above 1 all become more alike."],
    ["Top-k, top-p, min-p", "Leave out the unlikely: all but k tokens; all beyond the likeliest that together have the share p; all below a share of the likeliest."],
    ["Entropy", "How open the choice is. At 0 bits one token is certain; each further bit is like twice as many equal choices."],
    ["Drawn", "The token that a request with this seed would write here."],
  ],
  planner: [
    ["Ceiling, expected", "The ceiling takes all of a machine’s arithmetic and bandwidth, and no program passes it. What is expected takes the share that programs reach."],
    ["Bound by", "What a step waits for: weights and KV to be read from memory (bandwidth), or arithmetic (compute). A larger batch shares the reading."],
    ["KV per token", "Bytes of keys and values that every token of every open request takes up. With the weights it decides how many requests fit."],
    ["Prefill, decode", "Reading the prompt, many tokens at once; writing the answer, one token a step."],
  ],
  dashboard: [
    ["p50, p95", "Half of the requests, or 95 of 100, were at this or below."],
    ["Time to first token", "How long a client waits to see something: the queue, and the reading of the prompt."],
    ["Objective", "What was promised, set at the server’s start. One that is missed raises an alert, which names the likely cause."],
    ["Prefix hits", "The share of prompt tokens that were in the cache already."],
  ],
} satisfies Record<string, readonly Term[]>;
