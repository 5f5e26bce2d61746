/** The audit log, newest first. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { dateTime } from "../../lib/format";
import { errorMessage } from "../../lib/http";
import { Badge, Button, Card, Problem, Table } from "../../parts/basics";
import { type AuditEntry, listAudit } from "./api";

const PAGE = 50;

/** `target`: only entries about this key. */
export function AuditLog({ target }: { target?: string }) {
  const entries = useSignal<AuditEntry[]>([]);
  const more = useSignal(false);
  const loading = useSignal(true);
  const problem = useSignal("");
  const load = async (signal?: AbortSignal): Promise<void> => {
    loading.value = true;
    const query = new URLSearchParams({ limit: String(PAGE) });
    if (target) query.set("target", target);
    const last = entries.value.at(-1);
    if (last) query.set("before", String(last.id));
    try {
      const page = await listAudit(`?${query.toString()}`, signal);
      entries.value = [...entries.value, ...page.data];
      more.value = page.has_more;
      problem.value = "";
    } catch (error) {
      if (!signal?.aborted) problem.value = errorMessage(error);
    }
    loading.value = false;
  };
  useEffect(() => {
    const abort = new AbortController();
    entries.value = [];
    void load(abort.signal);
    return () => abort.abort();
  }, [target]);
  return (
    <Card title="Audit log" note={target ? undefined : "Who changed keys, tenants and models."}>
      {problem.value && <Problem message={problem.value} onRetry={() => void load()} />}
      {!loading.value && !entries.value.length && !problem.value && <p class="muted">No entries.</p>}
      {entries.value.length > 0 && (
        <Table label="Audit log" class="audit">
          <thead>
            <tr>
              <th>Time</th>
              <th>Action</th>
              {!target && <th>Target</th>}
              <th>By</th>
              <th>Outcome</th>
              <th>Details</th>
            </tr>
          </thead>
          <tbody>
            {entries.value.map((entry) => (
              <tr key={entry.id} data-action={entry.action}>
                <td class="nowrap">{dateTime(entry.time)}</td>
                <td class="nowrap">{entry.action}</td>
                {!target && <td class="target">{entry.target}</td>}
                <td class="nowrap">{entry.actor}</td>
                <td>
                  <Badge tone={entry.outcome === "ok" ? "good" : entry.outcome === "started" ? "warn" : "bad"}>{entry.outcome}</Badge>
                </td>
                <td class="small muted">{detailsOf(entry)}</td>
              </tr>
            ))}
          </tbody>
        </Table>
      )}
      {more.value && (
        <div class="row end">
          <Button disabled={loading.value} onClick={() => void load()}>
            Older entries
          </Button>
        </div>
      )}
    </Card>
  );
}

function detailsOf({ details }: AuditEntry): string {
  return Object.entries(details)
    .map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : String(value)}`)
    .join(", ");
}
