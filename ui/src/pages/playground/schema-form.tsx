/** A JSON schema of an object: its fields as a form, and the text for everything else. */
import { useState } from "preact/hooks";
import { Button, Field, Segmented } from "../../parts/basics";
import { parsed } from "../../parts/json-tree";

const TYPES = ["string", "integer", "number", "boolean", "list of strings", "choice"] as const;
type Type = (typeof TYPES)[number];

interface Row {
  name: string;
  type: Type;
  choices: string; // comma-separated
  required: boolean;
}

/** The fields of a schema that the form can show; null for other schemas. */
function rowsOf(text: string): Row[] | null {
  if (!text.trim()) return [];
  const schema = parsed(text) as { type?: string; properties?: Record<string, Record<string, unknown>>; required?: string[] } | undefined;
  const known = ["type", "properties", "required", "additionalProperties"];
  if (schema?.type !== "object" || Object.keys(schema).some((key) => !known.includes(key))) return null;
  const rows: Row[] = [];
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const type = typeOf(field);
    if (!type) return null;
    rows.push({ name, type, choices: type === "choice" ? (field.enum as string[]).join(", ") : "", required: schema.required?.includes(name) ?? false });
  }
  return rows;
}

function typeOf(field: Record<string, unknown>): Type | null {
  const keys = Object.keys(field).join();
  if (keys === "enum" && Array.isArray(field.enum) && field.enum.every((one) => typeof one === "string")) return "choice";
  if (keys === "type,items" && field.type === "array" && JSON.stringify(field.items) === '{"type":"string"}') return "list of strings";
  return keys === "type" ? (TYPES.slice(0, 4).find((type) => type === field.type) ?? null) : null;
}

function schemaOf(rows: Row[]): string {
  const field = ({ type, choices }: Row): Record<string, unknown> =>
    type === "choice"
      ? { enum: choices.split(",").map((one) => one.trim()).filter(Boolean) }
      : type === "list of strings"
        ? { type: "array", items: { type: "string" } }
        : { type };
  const named = rows.filter(({ name }) => name.trim());
  const schema = {
    type: "object",
    properties: Object.fromEntries(named.map((row) => [row.name.trim(), field(row)])),
    required: named.filter(({ required }) => required).map(({ name }) => name.trim()),
    additionalProperties: false,
  };
  return JSON.stringify(schema, null, 2);
}

export function SchemaEditor({ label, value, onChange }: { label: string; value: string; onChange: (text: string) => void }) {
  const [view, setView] = useState<"form" | "text">("form");
  const [rows, setRows] = useState<Row[]>(() => rowsOf(value) ?? []);
  const simple = rowsOf(value) !== null;
  const wrong = Boolean(value.trim()) && typeof parsed(value) !== "object";
  const change = (next: Row[]): void => {
    setRows(next);
    onChange(schemaOf(next));
  };
  const shown = simple && schemaOf(rows) !== value ? (rowsOf(value) ?? rows) : rows; // another schema was set from outside
  const put = (place: number, part: Partial<Row>): void => change(shown.map((row, other) => (other === place ? { ...row, ...part } : row)));
  return (
    <div class="stack tight" role="group" aria-label={label}>
      <Segmented
        label={`${label} as`}
        value={view}
        options={[
          ["form", "Form"],
          ["text", "JSON"],
        ]}
        onChange={setView}
      />
      {view === "text" ? (
        <Field label={`${label} (JSON Schema)`} hint={wrong ? "This is no JSON object." : undefined}>
          {(id) => <textarea id={id} rows={8} class="mono" spellcheck={false} aria-invalid={wrong} value={value} onInput={(event) => onChange(event.currentTarget.value)} />}
        </Field>
      ) : !simple ? (
        <p class="small muted">This schema has more than the form can show: edit it as JSON.</p>
      ) : (
        <>
          {shown.map((row, place) => (
            <div class="schema-row" key={place}>
              <input aria-label="Field name" placeholder="name" value={row.name} onInput={(event) => put(place, { name: event.currentTarget.value })} />
              <select aria-label={`Type of ${row.name || "the field"}`} value={row.type} onChange={(event) => put(place, { type: event.currentTarget.value as Type })}>
                {TYPES.map((type) => (
                  <option key={type}>{type}</option>
                ))}
              </select>
              <Button icon="trash" kind="quiet" label={`Remove ${row.name || "the field"}`} onClick={() => change(shown.filter((_, other) => other !== place))} />
              {row.type === "choice" && (
                <input aria-label={`Choices of ${row.name}`} placeholder="red, green, blue" value={row.choices} onInput={(event) => put(place, { choices: event.currentTarget.value })} />
              )}
              <label class="check">
                <input type="checkbox" checked={row.required} onChange={(event) => put(place, { required: event.currentTarget.checked })} />
                required
              </label>
            </div>
          ))}
          <Button icon="plus" onClick={() => change([...shown, { name: "", type: "string", choices: "", required: true }])}>
            Add a field
          </Button>
        </>
      )}
    </div>
  );
}
