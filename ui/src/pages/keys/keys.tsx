/** API keys and tenants: create, change, rotate, revoke, and their live use against their limits. */
import { useSignal, useSignalEffect } from "@preact/signals";
import { lockReason, useAdminPolling } from "../../lib/admin";
import { facts } from "../../lib/live";
import { go, route } from "../../lib/router";
import { useShortcuts } from "../../lib/shortcuts";
import { AdminPage } from "../../parts/admin";
import { Button, Empty, Problem, Segmented } from "../../parts/basics";
import { type Key, type Tenant, createKey, createTenant, listKeys, listTenants, updateKey, updateTenant } from "./api";
import { AuditLog } from "./audit";
import { KeyForm, TenantForm } from "./form";
import { KeyDetail } from "./key-detail";
import { type LiveUse, liveUse } from "./live-use";
import { RevokeDialog, RotateDialog } from "./rotate-dialogs";
import { SecretDialog } from "./secret-dialog";
import { TenantCard } from "./tenant-card";

export type Open =
  | { kind: "key"; before: Key | null; tenant?: string }
  | { kind: "tenant"; before: Tenant | null }
  | { kind: "rotate" | "revoke"; key: Key }
  | { kind: "secret"; key: Key; secret: string };

/** Whether the server has a database of keys; null: not known yet. */
const hasKeys = (): boolean | null => facts.value && (facts.value.settings.tenants?.keys ?? false);

export function Keys() {
  const keys = useSignal<Key[] | null>(null);
  const tenants = useSignal<Tenant[]>([]);
  const use = useSignal<LiveUse | null>(null);
  const missing = hasKeys() === false;
  const problem = useSignal("");
  const open = useSignal<Open | null>(null);
  const search = useSignal("");
  const all = useSignal(false); // with keys that are revoked or expired
  const reload = useAdminPolling(
    async (signal) => {
      if (!hasKeys()) return; // as of now: this may be called before the page is drawn with the facts
      [keys.value, tenants.value, use.value] = await Promise.all([listKeys(signal), listTenants(signal), liveUse(signal)]);
    },
    (message) => (problem.value = message),
    2000,
    [hasKeys()],
  );
  useSignalEffect(() => {
    if (lockReason.value === null) return;
    open.value = keys.value = use.value = null; // a new key is not shown behind a locked page either
    tenants.value = [];
  });
  const usable = lockReason.value === null && !missing && keys.value !== null;
  useShortcuts("Keys", [
    { keys: "n", label: "New key", run: () => usable && (open.value = { kind: "key", before: null }) },
    { keys: "Escape", label: "Back to all keys", run: () => go("keys") },
  ]);
  const view = route.value.rest[0] ?? "";
  const shown = keys.value?.find(({ id }) => id === view);
  return (
    <AdminPage
      title="Keys"
      terms="keys"
      lead="API keys and tenants, their limits, and what they use now."
      actions={
        usable && (
          <>
            <Segmented
              label="View"
              value={view === "audit" ? "audit" : "keys"}
              options={[
                ["keys", "Keys"],
                ["audit", "Audit log"],
              ]}
              onChange={(name) => (name === "audit" ? go("keys", "audit") : go("keys"))}
            />
            <Button onClick={() => (open.value = { kind: "tenant", before: null })}>New tenant</Button>
            <Button icon="plus" kind="primary" onClick={() => (open.value = { kind: "key", before: null })}>
              New key
            </Button>
          </>
        )
      }
    >
      <div class="stack">
        {problem.value && <Problem message={problem.value} onRetry={() => void reload()} />}
        {missing && (
          <Empty icon="key" title="This server has no database of keys">
            Start it with --keys to give each team or customer keys of its own, with limits, budgets and usage.
          </Empty>
        )}
        {usable && view === "audit" && <AuditLog />}
        {usable && view !== "audit" && shown && (
          <KeyDetail item={shown} tenant={tenants.value.find(({ name }) => name === shown.tenant)} use={use.value} open={(next) => (open.value = next)} />
        )}
        {usable && view !== "audit" && !shown && (
          <Tenants keys={keys.value ?? []} tenants={tenants.value} use={use.value} search={search} all={all} open={(next) => (open.value = next)} />
        )}
      </div>
      {open.value && <Dialogs open={open.value} set={(next) => (open.value = next)} tenants={tenants.value.map(({ name }) => name)} done={reload} />}
    </AdminPage>
  );
}

function Tenants({
  keys,
  tenants,
  use,
  search,
  all,
  open,
}: {
  keys: Key[];
  tenants: Tenant[];
  use: LiveUse | null;
  search: { value: string };
  all: { value: boolean };
  open: (next: Open) => void;
}) {
  const text = search.value.trim().toLowerCase();
  const listed = keys.filter((key) => (all.value || key.state === "active") && `${key.id} ${key.name} ${key.tenant}`.toLowerCase().includes(text));
  const inactive = keys.filter((key) => key.state !== "active").length;
  const visible = tenants.filter(({ name }) => !text || name.toLowerCase().includes(text) || listed.some((key) => key.tenant === name));
  if (!tenants.length)
    return (
      <Empty icon="key" title="No keys yet">
        A key belongs to a tenant, a team or a customer, which is created with its first key.
      </Empty>
    );
  return (
    <>
      <div class="row">
        <input type="search" class="search" aria-label="Search keys" placeholder="Search name, id or tenant" value={search.value} onInput={(event) => (search.value = event.currentTarget.value)} />
        {inactive > 0 && (
          <label class="check">
            <input type="checkbox" checked={all.value} onChange={(event) => (all.value = event.currentTarget.checked)} />
            Revoked and expired ({inactive})
          </label>
        )}
      </div>
      {visible.map((tenant) => (
        <TenantCard key={tenant.name} tenant={tenant} keys={listed.filter((key) => key.tenant === tenant.name)} use={use} open={open} />
      ))}
      {!visible.length && <p class="muted">No key matches.</p>}
    </>
  );
}

function Dialogs({ open, set, tenants, done }: { open: Open; set: (next: Open | null) => void; tenants: string[]; done: () => Promise<void> }) {
  const close = (): void => set(null);
  const show = async (key: Key): Promise<void> => {
    set(key.key ? { kind: "secret", key: { ...key, key: null }, secret: key.key } : null);
    await done();
  };
  if (open.kind === "key") {
    const { before } = open;
    const models = (facts.value?.models ?? []).map(({ name }) => name);
    return <KeyForm before={before} tenant={open.tenant} tenants={tenants} models={models} save={async (body) => show(await (before ? updateKey(before.id, body) : createKey(body)))} onClose={close} />;
  }
  if (open.kind === "tenant") {
    const { before } = open;
    const save = async (body: Record<string, unknown>): Promise<void> => {
      await (before ? updateTenant(before.name, body) : createTenant(body));
      close();
      await done();
    };
    return <TenantForm before={before} save={save} onClose={close} />;
  }
  if (open.kind === "secret") return <SecretDialog secret={open.secret} title={`Key ${open.key.id}`} note={`It belongs to ${open.key.tenant}.`} onClose={close} />;
  if (open.kind === "rotate") return <RotateDialog item={open.key} done={show} onClose={close} />;
  return <RevokeDialog item={open.key} done={done} onClose={close} />;
}
