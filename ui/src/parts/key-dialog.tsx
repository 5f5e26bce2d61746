import { useState } from "preact/hooks";
import { submitKey, keyPrompt, keyProblem } from "../lib/http";
import { Button, Field, Problem } from "./basics";
import { Dialog } from "./dialog";

export function KeyDialog() {
  const [key, setKey] = useState("");
  if (keyPrompt.value === null) return null;
  const given = key.trim();
  const problem = keyProblem(given);
  return (
    <Dialog title="API key" onClose={() => keyPrompt.value !== null && submitKey(null)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (!given || problem) return;
          submitKey(given);
          setKey("");
        }}
      >
        <Field label={keyPrompt.value} hint="Stored in this tab only.">
          {(id) => (
            <input
              id={id}
              type="password"
              autocomplete="off"
              autofocus
              aria-invalid={problem !== ""}
              value={key}
              onInput={(event) => setKey(event.currentTarget.value)}
            />
          )}
        </Field>
        {problem && <Problem message={problem} />}
        <div class="row end">
          <Button kind="primary" type="submit" disabled={!given || problem !== ""}>
            Continue
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
