/** /admin/keys, /admin/tenants, /admin/audit and /admin/limits. Times are seconds since 1970. */
import { adminJson } from "../../lib/admin";

export interface Limits {
  requests_per_minute: number | null;
  tokens_per_minute: number | null;
  concurrent_requests: number | null;
  usd_per_day: number | null;
  usd_per_month: number | null;
}

export interface Key extends Limits {
  id: string;
  tenant: string;
  name: string;
  state: "active" | "expired" | "revoked";
  scopes: string[];
  models: string[] | null;
  tier: string;
  default_max_tokens: number | null;
  max_tokens: number | null;
  created_at: number;
  expires_at: number | null;
  revoked_at: number | null;
  rotated_at: number | null;
  previous_valid_until: number | null;
  key?: string | null; // the key itself, in the answer to its creation or rotation
}

export interface Tenant extends Limits {
  name: string;
  weight: number;
  created_at: number;
}

export interface AuditEntry {
  id: number;
  time: number;
  actor: string;
  action: string;
  target: string;
  details: Record<string, unknown>;
  outcome: string;
  request_id: string | null;
}

export const SCOPES = ["inference", "observe", "admin"] as const;
export const TIERS = ["interactive", "standard", "bulk"] as const;

type List<T> = { data: T[] };
type Values = Record<string, unknown>;

const one = (route: string, name: string): string => `${route}/${encodeURIComponent(name)}`;

export const listKeys = async (signal: AbortSignal): Promise<Key[]> => (await adminJson<List<Key>>("/admin/keys", { signal })).data;
export const listTenants = async (signal: AbortSignal): Promise<Tenant[]> => (await adminJson<List<Tenant>>("/admin/tenants", { signal })).data;

export const createKey = (body: Values): Promise<Key> => adminJson("/admin/keys", { method: "POST", body });
export const updateKey = (id: string, body: Values): Promise<Key> => adminJson(one("/admin/keys", id), { method: "POST", body });
export const revokeKey = (id: string): Promise<Key> => adminJson(one("/admin/keys", id), { method: "DELETE" });
export const rotateKey = (id: string, grace_s: number): Promise<Key> =>
  adminJson(`${one("/admin/keys", id)}/rotate`, { method: "POST", body: { grace_s } });

export const createTenant = (body: Values): Promise<Tenant> => adminJson("/admin/tenants", { method: "POST", body });
export const updateTenant = (name: string, body: Values): Promise<Tenant> => adminJson(one("/admin/tenants", name), { method: "POST", body });

export const listAudit = (query: string, signal?: AbortSignal): Promise<List<AuditEntry> & { has_more: boolean }> =>
  adminJson(`/admin/audit${query}`, { signal });
