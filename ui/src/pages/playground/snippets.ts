/** The current request as curl and Python code. */

const OPENAI = new Set(
  ("model messages temperature top_p max_tokens stop seed n presence_penalty frequency_penalty logit_bias logprobs " +
    "top_logprobs stream").split(" "),
);

export function curl(body: Record<string, unknown>, origin: string, keyed: boolean): string {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const key = keyed ? ` \\\n  -H "Authorization: Bearer $PENSTOCK_API_KEY"` : "";
  return `curl ${origin}/v1/chat/completions \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${json}'\n`;
}

export function python(body: Record<string, unknown>, origin: string, keyed: boolean): string {
  const own = Object.entries(body).filter(([name]) => OPENAI.has(name) && name !== "stream");
  const extra = Object.entries(body).filter(([name]) => !OPENAI.has(name));
  const lines = own.map(([name, value]) => `    ${name}=${literal(value, 4)},`);
  if (extra.length) lines.push(`    extra_body=${literal(Object.fromEntries(extra), 4)},`);
  const key = keyed ? 'os.environ["PENSTOCK_API_KEY"]' : '"none"';
  return [
    ...(keyed ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${origin}/v1", api_key=${key})`,
    "stream = client.chat.completions.create(",
    ...lines,
    "    stream=True,",
    ")",
    "for chunk in stream:",
    "    for choice in chunk.choices:",
    '        print(choice.delta.content or "", end="", flush=True)',
    "",
  ].join("\n");
}

function literal(value: unknown, indent: number): string {
  const pad = " ".repeat(indent + 4);
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) {
    if (value.every((item) => typeof item !== "object")) return `[${value.map((item) => literal(item, indent)).join(", ")}]`;
    return `[\n${value.map((item) => `${pad}${literal(item, indent + 4)},\n`).join("")}${" ".repeat(indent)}]`;
  }
  if (typeof value === "object") {
    const entries = Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, indent + 4)}`);
    return `{${entries.join(", ")}}`;
  }
  return JSON.stringify(value);
}
