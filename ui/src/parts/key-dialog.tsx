import { useState } from "preact/hooks";
import { giveKey, keyAsked } from "../lib/http";
import { Button, Field } from "./basics";
import { Dialog } from "./dialog";

export function KeyDialog() {
  const [key, setKey] = useState("");
  if (keyAsked.value === null) return null;
  return (
    <Dialog title="API key" onClose={() => keyAsked.value !== null && giveKey(null)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (key.trim()) giveKey(key.trim());
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
              value={key}
              onInput={(event) => setKey(event.currentTarget.value)}
            />
          )}
        </Field>
        <div class="row end">
          <Button kind="primary" type="submit" disabled={!key.trim()}>
            Continue
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
