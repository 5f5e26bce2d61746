/** GET /admin/limits: what keys and tenants use now. */
import { adminJson } from "../../lib/admin";
import type { Use } from "./use";

type Account = Use & { tenant: string; key: string | null }; // null: all keys of the tenant

export type LiveUse = Map<string, Use>;

const nameOf = (tenant: string, key: string | null): string => JSON.stringify([tenant, key]);

/** Of the accounts that each query finds; null: the store of limits does not answer. */
export async function liveUse(queries: string[], signal: AbortSignal): Promise<LiveUse | null> {
  try {
    const found = await Promise.all(queries.map((query) => adminJson<{ data: Account[] }>(`/admin/limits?${query}`, { signal })));
    return new Map(found.flatMap(({ data }) => data).map((account) => [nameOf(account.tenant, account.key), account]));
  } catch {
    return null;
  }
}

/** Without a key: of the tenant. Undefined: not known. */
export function useOf(use: LiveUse | null, tenant: string, key: string | null = null): Use | undefined {
  return use?.get(nameOf(tenant, key));
}
