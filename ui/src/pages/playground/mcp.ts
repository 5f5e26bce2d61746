/**
 * A client of the Model Context Protocol over Streamable HTTP: JSON-RPC messages as POSTs to one address, answered as JSON or
 * as an event stream. The browser talks to the server itself, so the server has to allow this page's origin (CORS).
 */
import { serverEvents } from "../../lib/sse";

const VERSION = "2025-06-18";
const TIMEOUT_MS = 60_000;
const MAX_BYTES = 4 << 20;
const MAX_TOOLS = 128;

export interface McpTool {
  name: string;
  description?: string;
  inputSchema?: unknown;
}

interface Reply {
  id?: number | string | null;
  result?: unknown;
  error?: { code: number; message: string };
}

interface Content {
  type: string;
  text?: string;
  mimeType?: string;
  resource?: { text?: string; uri?: string };
}

export class McpClient {
  name = "";
  #session: string | null = null;
  #version = "";
  #calls = 0;

  constructor(
    readonly url: string,
    readonly token: string, // sent as a bearer token; empty: none
  ) {}

  async connect(): Promise<McpTool[]> {
    const client = { name: "penstock-playground", version: "1" };
    const told = (await this.#call("initialize", { protocolVersion: VERSION, capabilities: {}, clientInfo: client })) as {
      protocolVersion?: string;
      serverInfo?: { name?: string; title?: string };
    };
    this.#version = told.protocolVersion ?? VERSION;
    this.name = told.serverInfo?.title ?? told.serverInfo?.name ?? new URL(this.url).host;
    await this.#send({ jsonrpc: "2.0", method: "notifications/initialized" });
    const tools: McpTool[] = [];
    for (let cursor: string | undefined; ; ) {
      const page = (await this.#call("tools/list", cursor ? { cursor } : {})) as { tools?: McpTool[]; nextCursor?: string };
      tools.push(...(page.tools ?? []).filter((tool) => typeof tool?.name === "string"));
      cursor = page.nextCursor;
      if (!cursor || tools.length >= MAX_TOOLS) return tools.slice(0, MAX_TOOLS);
    }
  }

  /** The result as text. What is no text is named. */
  async call(name: string, given: unknown, signal: AbortSignal): Promise<{ text: string; failed: boolean }> {
    const result = (await this.#call("tools/call", { name, arguments: given }, signal)) as {
      content?: Content[];
      structuredContent?: unknown;
      isError?: boolean;
    };
    const parts = (result.content ?? []).map(
      ({ type, text, mimeType, resource }) => text ?? resource?.text ?? `[${type}${mimeType ? ` ${mimeType}` : ""}${resource?.uri ? ` ${resource.uri}` : ""}]`,
    );
    const text = parts.join("\n") || (result.structuredContent === undefined ? "" : JSON.stringify(result.structuredContent));
    return { text, failed: result.isError === true };
  }

  /** Ends the session, if the server has one. */
  async close(): Promise<void> {
    if (this.#session) await fetch(this.url, { method: "DELETE", headers: this.#headers() }).catch(() => undefined);
    this.#session = null;
  }

  async #call(method: string, params: unknown, signal?: AbortSignal): Promise<unknown> {
    const id = ++this.#calls;
    const response = await this.#send({ jsonrpc: "2.0", id, method, params }, signal);
    const reply = await readReply(response, id);
    if (reply.error) throw new Error(`${method}: ${reply.error.message}`);
    this.#session = response.headers.get("mcp-session-id") ?? this.#session;
    return reply.result ?? {};
  }

  async #send(message: unknown, signal?: AbortSignal): Promise<Response> {
    const timeout = AbortSignal.timeout(TIMEOUT_MS);
    let response: Response;
    try {
      response = await fetch(this.url, {
        method: "POST",
        headers: { ...this.#headers(), "content-type": "application/json", accept: "application/json, text/event-stream" },
        body: JSON.stringify(message),
        signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
        credentials: "omit",
        redirect: "error",
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      if (timeout.aborted) throw new Error(`${this.url} gave no answer within ${TIMEOUT_MS / 1000} s.`);
      throw new Error(`${this.url} cannot be reached from this page. Does it run, and does it allow the origin ${location.origin} (CORS)?`);
    }
    if (!response.ok) throw new Error(`${this.url} answered ${response.status}: ${(await response.text()).slice(0, 300)}`);
    return response;
  }

  #headers(): Record<string, string> {
    return {
      ...(this.token ? { authorization: `Bearer ${this.token}` } : {}),
      ...(this.#version ? { "mcp-protocol-version": this.#version } : {}),
      ...(this.#session ? { "mcp-session-id": this.#session } : {}),
    };
  }
}

async function readReply(response: Response, id: number): Promise<Reply> {
  if (Number(response.headers.get("content-length") ?? 0) > MAX_BYTES) throw new Error("The answer is too large.");
  if (!response.headers.get("content-type")?.startsWith("text/event-stream")) return (await response.json()) as Reply;
  let bytes = 0;
  for await (const { data } of serverEvents(response)) {
    if ((bytes += data.length) > MAX_BYTES) throw new Error("The answer is too large.");
    const message = JSON.parse(data) as Reply;
    if (message.id === id) return message; // others are notifications and the server's own requests
  }
  throw new Error("The stream ended without an answer.");
}
