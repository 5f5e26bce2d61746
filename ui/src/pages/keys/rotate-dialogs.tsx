/** Replaces the secret of a key, or ends the key. */
import { useState } from "preact/hooks";
import { facts } from "../../lib/live";
import { Field } from "../../parts/basics";
import { Confirm } from "../../parts/dialog";
import { type Key, revokeKey, rotateKey } from "./api";

const GRACES = [
  [0, "not at all"],
  [3600, "for an hour"],
  [86_400, "for a day"],
  [604_800, "for a week"],
] as const;

export function RotateDialog({ item, done, onClose }: { item: Key; done: (key: Key) => Promise<void>; onClose: () => void }) {
  const [grace, setGrace] = useState(0);
  let rotated: Key | null = null;
  const run = async (): Promise<void> => void (rotated = await rotateKey(item.id, grace));
  return (
    <Confirm title={`Rotate key ${item.id}?`} action="Rotate" run={run} onClose={() => (rotated ? void done(rotated) : onClose())}>
      <div class="stack">
        <p>A new secret replaces the old one. Id, limits and usage stay.</p>
        <Field label="The old key stays valid">
          {(id) => (
            <select id={id} value={grace} onChange={(event) => setGrace(Number(event.currentTarget.value))}>
              {GRACES.map(([seconds, label]) => (
                <option key={seconds} value={seconds}>
                  {label}
                </option>
              ))}
            </select>
          )}
        </Field>
      </div>
    </Confirm>
  );
}

export function RevokeDialog({ item, done, onClose }: { item: Key; done: () => Promise<void>; onClose: () => void }) {
  const run = async (): Promise<void> => {
    await revokeKey(item.id);
    await done();
  };
  return (
    <Confirm title={`Revoke key ${item.id}?`} action="Revoke" run={run} onClose={onClose}>
      <p>
        Requests with {item.name ? <b>{item.name}</b> : "it"} are refused within a second, on all servers. Running ones{" "}
        {facts.value?.settings.tenants?.revoked_streams === "finish" ? "may finish" : "end with an error"}. This cannot be undone.
      </p>
    </Confirm>
  );
}
