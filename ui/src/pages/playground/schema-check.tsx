/** Whether a JSON answer matches the schema that it was asked for, checked here and not only promised by the server. */
import { Validator } from "@cfworker/json-schema";
import { useMemo } from "preact/hooks";
import { Badge } from "../../parts/basics";
import { parsed } from "../../parts/json-tree";

const SHOWN = 5;

export interface Check {
  state: "none" | "match" | "mismatch" | "unknown";
  errors: string[];
}

export function checkSchema(value: unknown, schema: string): Check {
  if (!schema.trim()) return { state: "none", errors: [] };
  const known = parsed(schema);
  if (typeof known !== "object" || known === null) return { state: "unknown", errors: ["the schema is no JSON object"] };
  try {
    const { valid, errors } = new Validator(known, "2020-12", false).validate(value);
    if (valid) return { state: "match", errors: [] };
    const leaves = errors.filter(({ keyword }) => !["properties", "items", "allOf", "anyOf", "oneOf", "$ref"].includes(keyword));
    return { state: "mismatch", errors: (leaves.length ? leaves : errors).map(({ instanceLocation, error }) => `${instanceLocation} ${error}`) };
  } catch (error) {
    return { state: "unknown", errors: [error instanceof Error ? error.message : String(error)] };
  }
}

export function SchemaCheck({ value, schema }: { value: unknown; schema: string }) {
  const { state, errors } = useMemo(() => checkSchema(value, schema), [value, schema]);
  if (state === "none") return <span>JSON</span>;
  if (state === "match") return <Badge tone="good">matches the schema</Badge>;
  return (
    <span>
      <Badge tone={state === "mismatch" ? "bad" : "warn"}>{state === "mismatch" ? "does not match the schema" : "the schema cannot be checked here"}</Badge>
      <ul class="small">
        {errors.slice(0, SHOWN).map((text) => (
          <li key={text}>{text}</li>
        ))}
      </ul>
    </span>
  );
}
