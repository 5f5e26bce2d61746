import { Segmented } from "../../parts/basics";
import { edited, set } from "./lanes";
import { SchemaEditor } from "./schema-form";

/** The form of the answer: free text, any JSON object, or JSON that matches a schema. */
export function FormatPanel() {
  const { format, schema } = edited.value.settings.value;
  return (
    <details open={format !== "text"}>
      <summary>Structured output</summary>
      <div class="params">
        <Segmented
          label="Form of the answer"
          value={format}
          options={[
            ["text", "Text"],
            ["json", "JSON"],
            ["schema", "Schema"],
          ]}
          onChange={(chosen) => set({ format: chosen })}
        />
        {format === "schema" && <SchemaEditor label="Schema" value={schema} onChange={(text) => set({ schema: text })} />}
        {format !== "text" && <p class="small muted">The server holds the model to it while it generates. Say in the message, too, which JSON you want.</p>}
      </div>
    </details>
  );
}
