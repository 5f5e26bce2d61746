/** The MCP servers that this page is connected to, and their tools. Addresses come from --mcp-server: no other host can be reached. */
import { computed, signal } from "@preact/signals";
import { errorMessage } from "../../lib/http";
import { facts } from "../../lib/live";
import { McpClient, type McpTool } from "./mcp";

export interface Connection {
  url: string;
  client: McpClient | null;
  tools: McpTool[];
  off: string[]; // tools that the model is not told of
  problem: string;
}

export const connections = signal<Record<string, Connection>>({});

/** The addresses that the operator allows. */
export const allowed = computed(() => {
  const serve = facts.value?.settings.serve as { mcp_server?: string | null } | undefined;
  return (serve?.mcp_server ?? "").split(",").map((url) => url.trim()).filter(Boolean);
});

/** Names are unique among all tools, and such as the API takes. */
export const mcpTools = computed(() => {
  const taken = new Set<string>();
  return Object.values(connections.value).flatMap(({ client, tools, off }) =>
    tools
      .filter(({ name }) => client && !off.includes(name))
      .map((tool) => {
        let name = tool.name.replace(/[^\w-]/g, "_").slice(0, 60);
        while (taken.has(name)) name += "_";
        taken.add(name);
        const parameters = tool.inputSchema ?? { type: "object", properties: {} };
        const definition = { type: "function", function: { name, description: tool.description?.slice(0, 2000), parameters } };
        return { name, tool, client: client!, definition };
      }),
  );
});

export const findTool = (name: string) => mcpTools.value.find((tool) => tool.name === name);

function put(url: string, change: Partial<Connection>): void {
  const before = connections.value[url] ?? { url, client: null, tools: [], off: [], problem: "" };
  connections.value = { ...connections.value, [url]: { ...before, ...change } };
}

export async function connect(url: string, token: string): Promise<void> {
  const client = new McpClient(url, token);
  try {
    put(url, { client, tools: await client.connect(), problem: "" });
  } catch (error) {
    put(url, { client: null, tools: [], problem: errorMessage(error) });
  }
}

export function disconnect(url: string): void {
  void connections.value[url]?.client?.close();
  put(url, { client: null, tools: [], problem: "" });
}

export function offer(url: string, name: string, on: boolean): void {
  const { off = [] } = connections.value[url] ?? {};
  put(url, { off: on ? off.filter((other) => other !== name) : [...off, name] });
}
