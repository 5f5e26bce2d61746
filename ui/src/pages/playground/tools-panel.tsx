/** Tools that the model may call: functions that you answer for, and tools of MCP servers. */
import { useState } from "preact/hooks";
import { Button, Field, Problem, Segmented } from "../../parts/basics";
import { Check, TextField } from "../../parts/form";
import { edited, set } from "./lanes";
import { allowed, connect, connections, disconnect, mcpTools, offer } from "./mcp-servers";
import { findModel } from "./models";
import type { Settings, Tool } from "./params";
import { SchemaEditor } from "./schema-form";

const MAX_TOOLS = 32;

export function ToolsPanel() {
  const { tools, toolChoice } = edited.value.settings.value;
  const able = findModel(edited.value.model.value)?.capabilities.includes("tools") ?? true;
  const put = (place: number, part: Partial<Tool>): void =>
    set({ tools: tools.map((tool, other) => (other === place ? { ...tool, ...part } : tool)) });
  return (
    <details>
      <summary>Tools{tools.length + mcpTools.value.length > 0 && ` (${tools.length + mcpTools.value.length})`}</summary>
      <div class="params">
        {!able && <p class="small muted">This model’s chat template has no tools.</p>}
        <Segmented
          label="Tool choice"
          value={toolChoice}
          options={[
            ["auto", "Auto"],
            ["required", "Required"],
            ["none", "None"],
          ]}
          onChange={(chosen: Settings["toolChoice"]) => set({ toolChoice: chosen })}
        />
        {tools.map((tool, place) => (
          <fieldset class="tool-form" key={place}>
            <legend>{tool.name || "Function"}</legend>
            <TextField label="Name" value={tool.name} wrong={!/^[\w-]{1,64}$/.test(tool.name)} onInput={(name) => put(place, { name })} />
            <Field label="Description">
              {(id) => <textarea id={id} rows={2} value={tool.description} onInput={(event) => put(place, { description: event.currentTarget.value })} />}
            </Field>
            <SchemaEditor label={`Parameters of ${tool.name || "the function"}`} value={tool.parameters} onChange={(parameters) => put(place, { parameters })} />
            <Button icon="trash" kind="quiet" onClick={() => set({ tools: tools.filter((_, other) => other !== place) })}>
              Remove
            </Button>
          </fieldset>
        ))}
        <Button icon="plus" disabled={tools.length >= MAX_TOOLS} onClick={() => set({ tools: [...tools, { name: "", description: "", parameters: "" }] })}>
          Add a function
        </Button>
        <h3>MCP servers</h3>
        {!allowed.value.length && (
          <p class="small muted">
            This page connects to MCP servers that the operator names: <code>penstock serve --mcp-server http://127.0.0.1:9000/mcp</code>. The MCP server has to allow
            this page’s origin (CORS).
          </p>
        )}
        {allowed.value.map((url) => (
          <Server key={url} url={url} />
        ))}
      </div>
    </details>
  );
}

function Server({ url }: { url: string }) {
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  const { client, tools, off, problem } = connections.value[url] ?? { client: null, tools: [], off: [], problem: "" };
  if (!client)
    return (
      <form
        class="tool-form"
        onSubmit={(event) => {
          event.preventDefault();
          setBusy(true);
          void connect(url, token).finally(() => setBusy(false));
        }}
      >
        <code class="ellipsis">{url}</code>
        <Field label="Bearer token" hint="If it asks for one; held in memory only.">
          {(id) => <input id={id} type="password" autocomplete="off" value={token} onInput={(event) => setToken(event.currentTarget.value)} />}
        </Field>
        {problem && <Problem message={problem} />}
        <Button type="submit" disabled={busy}>
          {busy ? "Connecting…" : "Connect"}
        </Button>
      </form>
    );
  return (
    <fieldset class="tool-form">
      <legend>{client.name}</legend>
      <code class="ellipsis">{url}</code>
      {tools.map(({ name, description }) => (
        <Check key={name} label={<span title={description}>{name}</span>} checked={!off.includes(name)} onChange={(on) => offer(url, name, on)} />
      ))}
      {!tools.length && <p class="small muted">It has no tools.</p>}
      <Button onClick={() => disconnect(url)}>Disconnect</Button>
    </fieldset>
  );
}
