/** Pages for operators: they ask for an admin key while the server refuses. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { lock, lockReason, unlock, unlocked } from "../lib/admin";
import { keyProblem } from "../lib/http";
import { Button, Card, Field, PageHeader, Problem } from "./basics";
import { Check } from "./form";

export function AdminPage({
  title,
  lead,
  terms,
  actions,
  children,
}: {
  title: string;
  lead: string;
  terms: Parameters<typeof PageHeader>[0]["terms"];
  actions?: ComponentChildren;
  children: ComponentChildren;
}) {
  const open = lockReason.value === null;
  return (
    <>
      <PageHeader title={title} terms={terms} lead={lead}>
        {open && actions}
        {unlocked.value && (
          <Button icon="lock" onClick={() => lock("Locked.")}>
            Lock
          </Button>
        )}
      </PageHeader>
      {open ? children : <Unlock reason={lockReason.value ?? ""} />}
    </>
  );
}

export function Unlock({ reason }: { reason: string }) {
  const [key, setKey] = useState("");
  const [keep, setKeep] = useState(false);
  const given = key.trim();
  const problem = keyProblem(given);
  return (
    <Card title="Admin key required" class="unlock">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (!given || problem) return;
          setKey("");
          unlock(given, keep);
        }}
      >
        {reason && <Problem message={reason} />}
        <Field label="Admin key" hint="Held in memory only: gone when the page is reloaded, locked, or idle for 15 minutes.">
          {(id) => (
            <input
              id={id}
              type="password"
              autocomplete="off"
              autofocus
              spellcheck={false}
              aria-invalid={problem !== ""}
              value={key}
              onInput={(event) => setKey(event.currentTarget.value)}
            />
          )}
        </Field>
        {problem && <Problem message={problem} />}
        <Check label="Keep it in this tab until the tab is closed" checked={keep} onChange={setKeep} />
        <div class="row end">
          <Button kind="primary" type="submit" disabled={!given || problem !== ""}>
            Unlock
          </Button>
        </div>
      </form>
    </Card>
  );
}
