/** API keys and tenants: create, change, rotate, revoke, and their live use against their limits. */
import { useSignal, useSignalEffect } from "@preact/signals";
import { lockReason, useAdminPolling } from "../../lib/admin";
import { facts } from "../../lib/live";
import { go, route } from "../../lib/router";
import { useShortcuts } from "../../lib/shortcuts";
import { AdminPage } from "../../parts/admin";
import { Button, Empty, Problem, Segmented } from "../../parts/basics";
import { type Key, type Listing, MAX_PAGE, type Tenant, createKey, createTenant, getKey, getTenant, listPage, queryOf, updateKey, updateTenant } from "./api";
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
  const listing = useSignal<Listing | null>(null);
  const shown = useSignal<{ key: Key; tenant: Tenant } | null>(null);
  const use = useSignal<LiveUse | null>(null);
  const missing = hasKeys() === false;
  const problem = useSignal("");
  const open = useSignal<Open | null>(null);
  const search = useSignal("");
  const all = useSignal(false); // with keys that are revoked or expired
  const before = useSignal<Key[]>([]); // the last key of each page before this one
  const view = route.value.rest[0] ?? "";
  const id = view === "audit" ? "" : view;
  const load = async (signal: AbortSignal): Promise<void> => {
    if (!hasKeys()) return; // as of now: this may be called before the page is drawn with the facts
    if (id) {
      const key = await getKey(id, signal);
      const uses = liveUse([queryOf({ key: id }), queryOf({ tenant: key.tenant, limit: 1 })], signal);
      [shown.value, use.value] = [{ key, tenant: await getTenant(key.tenant, signal) }, await uses];
    } else {
      const after = before.value.at(-1) ?? null;
      const asked = { search: search.value.trim(), all: all.value, after };
      const uses = liveUse([queryOf({ search: asked.search, after: after ? `${after.tenant}/${after.id}` : "", limit: MAX_PAGE })], signal);
      const [found, foundUse] = await Promise.all([listPage(asked, signal), uses]);
      [listing.value, use.value] = [found, foundUse];
    }
  };
  const told = (message: string): void => {
    problem.value = message;
    if (message) shown.value = null;
  };
  const reload = useAdminPolling(load, told, 2000, [hasKeys(), id, search.value, all.value, before.value]);
  useSignalEffect(() => {
    if (lockReason.value === null) return;
    open.value = listing.value = shown.value = use.value = null; // a new key is not shown behind a locked page either
  });
  const detail = shown.value?.key.id === id ? shown.value : null;
  const usable = lockReason.value === null && !missing && (listing.value !== null || detail !== null);
  useShortcuts("Keys", [
    { keys: "n", label: "New key", run: () => usable && (open.value = { kind: "key", before: null }) },
    { keys: "Escape", label: "Back to all keys", run: () => go("keys") },
  ]);
  const show = (next: Open): void => void (open.value = next);
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
        {usable && detail && <KeyDetail item={detail.key} tenant={detail.tenant} use={use.value} open={show} />}
        {usable && !view && listing.value && <Tenants listing={listing.value} use={use.value} search={search} all={all} before={before} open={show} />}
      </div>
      {open.value && <Dialogs open={open.value} set={(next) => (open.value = next)} tenants={(listing.value?.tenants ?? []).map(({ name }) => name)} done={reload} />}
    </AdminPage>
  );
}

function Tenants({
  listing: { keys, tenants, more },
  use,
  search,
  all,
  before,
  open,
}: {
  listing: Listing;
  use: LiveUse | null;
  search: { value: string };
  all: { value: boolean };
  before: { value: Key[] };
  open: (next: Open) => void;
}) {
  const first = !before.value.length;
  if (first && !tenants.length && !search.value)
    return (
      <Empty icon="key" title="No keys yet">
        A key belongs to a tenant, a team or a customer, which is created with its first key.
      </Empty>
    );
  return (
    <>
      <div class="row">
        <input
          type="search"
          class="search"
          aria-label="Search keys"
          placeholder="Search name, id or tenant"
          value={search.value}
          onInput={(event) => {
            search.value = event.currentTarget.value;
            before.value = [];
          }}
        />
        <label class="check">
          <input
            type="checkbox"
            checked={all.value}
            onChange={(event) => {
              all.value = event.currentTarget.checked;
              before.value = [];
            }}
          />
          Revoked and expired
        </label>
      </div>
      {tenants.map((tenant) => (
        <TenantCard key={tenant.name} tenant={tenant} keys={keys.filter((key) => key.tenant === tenant.name)} use={use} open={open} />
      ))}
      {!tenants.length && <p class="muted">No key matches.</p>}
      {(more || !first) && (
        <nav class="row end" aria-label="Pages of keys">
          <span class="muted small">
            Page {before.value.length + 1}, {keys.length} keys
          </span>
          <Button icon="left" disabled={first} onClick={() => (before.value = before.value.slice(0, -1))}>
            Previous
          </Button>
          <Button disabled={!more} onClick={() => (before.value = [...before.value, keys.at(-1)!])}>
            Next
          </Button>
        </nav>
      )}
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
