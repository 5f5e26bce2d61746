/** Why a request was refused or failed. */
import type { RequestDetail } from "../../lib/api";
import { ERRORS } from "../../lib/labels";
import { Card } from "../../parts/basics";

export function Refusal({ request, error }: { request: RequestDetail; error: NonNullable<RequestDetail["error"]> }) {
  const code = error.code ?? "";
  return (
    <Card title={request.finish === "rejected" ? "Refused" : "Failed"} class="refusal">
      <p class="reason" role="alert">
        {error.message}
      </p>
      <p class="small muted">
        {[error.status, code].filter(Boolean).join(" · ")}
        {ERRORS[code] && `: ${ERRORS[code]}`}
      </p>
    </Card>
  );
}
