import { useState } from "preact/hooks";
import { giveKey, keyAsked, keyProblem } from "../lib/http";
import { Button, Field, Problem } from "./basics";
import { Dialog } from "./dialog";

export function KeyDialog() {
  const [key, setKey] = useState("");
  if (keyAsked.value === null) return null;
  const given = key.trim();
  const problem = keyProblem(given);
  return (
    <Dialog title="API key" onClose={() => keyAsked.value !== null && giveKey(null)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (!given || problem) return;
          giveKey(given);
          setKey("");
        }}
      >
        <Field label={keyAsked.value} hint="Kept in this tab only, until it is closed.">
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
