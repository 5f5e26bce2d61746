/** One key: all its fields, its live use and that of its tenant, and its entries in the audit log. */
import type { ComponentChildren } from "preact";
import { count, dateTime } from "../../lib/format";
import { go } from "../../lib/router";
import { Badge, Button, Card } from "../../parts/basics";
import type { Key, Tenant } from "./api";
import { AuditLog } from "./audit";
import type { Open } from "./keys";
import { type LiveUse, useOf } from "./live-use";
import { KEY_TONES } from "./tenant-card";
import { UseMeters } from "./use";

export function KeyDetail({ item, tenant, use, open }: { item: Key; tenant: Tenant; use: LiveUse | null; open: (next: Open) => void }) {
  const rows: [string, ComponentChildren][] = [
    ["Tenant", item.tenant],
    ["Scopes", item.scopes.join(", ")],
    ["Models", item.models === null ? "all" : item.models.join(", ")],
    ["Tier", item.tier],
    ["Default max_tokens", item.default_max_tokens === null ? "the server’s" : count(item.default_max_tokens)],
    ["Largest max_tokens", item.max_tokens === null ? "no limit" : count(item.max_tokens)],
    ["Created", dateTime(item.created_at)],
    ["Expires", item.expires_at === null ? "never" : dateTime(item.expires_at)],
  ];
  if (item.rotated_at !== null) rows.push(["Rotated", dateTime(item.rotated_at)]);
  if (item.previous_valid_until !== null) rows.push(["Old secret valid until", dateTime(item.previous_valid_until)]);
  if (item.revoked_at !== null) rows.push(["Revoked", dateTime(item.revoked_at)]);
  return (
    <>
      <header class="detail-head">
        <Button icon="left" kind="quiet" label="Back to all keys" onClick={() => go("keys")} />
        <h2 class="key-title">{item.name || item.id}</h2>
        <code class="muted">{item.id}</code>
        <Badge tone={KEY_TONES[item.state]}>{item.state}</Badge>
        <span class="spacer" />
        {item.state !== "revoked" && (
          <div class="row">
            <Button icon="edit" onClick={() => open({ kind: "key", before: item })}>
              Edit
            </Button>
            <Button icon="redo" onClick={() => open({ kind: "rotate", key: item })}>
              Rotate
            </Button>
            <Button icon="trash" kind="danger" onClick={() => open({ kind: "revoke", key: item })}>
              Revoke
            </Button>
          </div>
        )}
      </header>
      <Card>
        <dl class="facts">
          {rows.map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      </Card>
      <div class="cards">
        <Card title="Use of this key">
          <UseMeters limits={item} use={useOf(use, item.tenant, item.id)} owner={`key ${item.id}`} />
        </Card>
        <Card title={`Use of all keys of ${tenant.name}`}>
          <UseMeters limits={tenant} use={useOf(use, tenant.name)} owner={`tenant ${tenant.name}`} />
        </Card>
      </div>
      <AuditLog target={item.id} />
    </>
  );
}
