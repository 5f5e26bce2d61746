/** The request of a lane. */
import { facts } from "../../lib/live";
import type { Lane } from "./lanes";
import type { Message } from "./message";
import { mcpTools } from "./mcp-servers";
import { recommended } from "./models";
import { fields, parseJson, type Tool } from "./params";

const ALTERNATIVES = 5;

/** Whether the server drafts tokens: then streams can say which ones. */
export function speculates(): boolean {
  const engine = facts.value?.engine.speculation;
  return engine !== undefined && engine !== "off";
}

export function requestBody(lane: Lane, path: Message[], begun = ""): Record<string, unknown> {
  const now = lane.settings.value;
  const messages: Record<string, unknown>[] = path.map(asSent);
  if (now.system.trim()) messages.unshift({ role: "system", content: now.system });
  const body: Record<string, unknown> = { model: lane.model.value, messages };
  if (begun) {
    messages.push({ role: "assistant", content: begun });
    body.continue_final_message = true;
  }
  Object.assign(body, { max_tokens: recommended(lane.model.value).max_tokens }, fields(now));
  if (now.probabilities) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
  if (now.drafts && speculates()) body.include_drafts = true;
  const tools = [...now.tools.map(functionTool), ...mcpTools.value.map(({ definition }) => definition)];
  if (tools.length && now.toolChoice !== "none") {
    body.tools = tools;
    body.parallel_tool_calls = false; // one call, one consent; small models would repeat it
    if (now.toolChoice === "required" && path.at(-1)?.role === "user") body.tool_choice = "required";
  }
  const documents = attachedDocuments(path);
  if (documents.length) body.documents = documents;
  if (documents.length || now.history || now.budget)
    body.context = {
      ...(now.history ? { history: now.history } : {}),
      ...(now.budget ? { budget: { total: now.budget } } : {}),
      trace: true,
    };
  return body;
}

function asSent({ role, content, calls, callId }: Message): Record<string, unknown> {
  if (role === "tool") return { role, tool_call_id: callId, content };
  if (!calls.length) return { role, content };
  const called = calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } }));
  return { role, content: content || null, tool_calls: called };
}

/** Each with an id of its own: the file's name, numbered where it occurs again. */
function attachedDocuments(path: Message[]): { id: string; title: string; text: string }[] {
  const seen = new Map<string, number>();
  return path.flatMap(({ attachments }) =>
    attachments.map(({ name, text }) => {
      const times = (seen.get(name) ?? 0) + 1;
      seen.set(name, times);
      return { id: times > 1 ? `${name} (${times})` : name, title: name, text };
    }),
  );
}

export function functionTool({ name, description, parameters }: Tool): Record<string, unknown> {
  return {
    type: "function",
    function: {
      name,
      ...(description ? { description } : {}),
      ...(parameters.trim() ? { parameters: parseJson(parameters, `Parameters of ${name}`) } : {}),
    },
  };
}
