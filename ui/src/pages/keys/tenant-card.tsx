import { ago, day } from "../../lib/format";
import { Badge, Button, Card, Table } from "../../parts/basics";
import type { Key, Tenant } from "./api";
import type { Open } from "./keys";
import { type LiveUse, useOf } from "./live-use";
import { Tightest, UseMeters } from "./use";

export const KEY_TONES = { active: "good", expired: "warn", revoked: "bad" } as const;

export function TenantCard({ tenant, keys, use, open }: { tenant: Tenant; keys: Key[]; use: LiveUse | null; open: (next: Open) => void }) {
  return (
    <Card
      class="tenant"
      title={tenant.name}
      aside={
        <>
          <span>weight {tenant.weight}</span>
          <Button icon="edit" aria-label={`Edit tenant ${tenant.name}`} onClick={() => open({ kind: "tenant", before: tenant })}>
            Edit
          </Button>
          <Button icon="plus" aria-label={`New key of ${tenant.name}`} onClick={() => open({ kind: "key", before: null, tenant: tenant.name })}>
            Key
          </Button>
        </>
      }
    >
      <UseMeters limits={tenant} use={useOf(use, tenant.name)} owner={`tenant ${tenant.name}`} />
      {keys.length > 0 && (
        <Table label={`Keys of ${tenant.name}`} class="keys-table">
          <thead>
            <tr>
              <th>Key</th>
              <th>State</th>
              <th>Scopes</th>
              <th>Tier</th>
              <th>Use</th>
              <th>Expires</th>
              <th>Created</th>
            </tr>
          </thead>
          <tbody>
            {keys.map((key) => (
              <tr key={key.id} data-key={key.id}>
                <td class="key-name">
                  <a href={`#/keys/${key.id}`}>{key.name || key.id}</a>
                  {key.name && <code class="muted">{key.id}</code>}
                </td>
                <td>
                  <Badge tone={KEY_TONES[key.state]}>{key.state}</Badge>
                </td>
                <td>{key.scopes.join(", ")}</td>
                <td>{key.tier}</td>
                <td>
                  <Tightest limits={key} use={useOf(use, key.tenant, key.id)} />
                </td>
                <td>{key.expires_at === null ? <span class="muted">never</span> : day(key.expires_at)}</td>
                <td>{ago(key.created_at)}</td>
              </tr>
            ))}
          </tbody>
        </Table>
      )}
    </Card>
  );
}
