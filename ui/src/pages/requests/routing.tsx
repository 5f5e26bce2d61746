/** How a request found its deployment: decisions and failed attempts, in order. */
import type { RequestDetail, RouteStep } from "../../lib/api";
import { short } from "../../lib/format";
import { POLICIES } from "../../lib/labels";
import { Badge, Card, Table } from "../../parts/basics";
import { placeOf } from "./row";

export function Routing({ request }: { request: RequestDetail }) {
  const { asked, route } = request;
  const served = request.replica !== null && request.finish !== "rejected" ? placeOf(request) : null;
  return (
    <Card title="Routing" note={<Outcome asked={asked} served={served} />}>
      <ol class="route">
        {route.map((step, place) => (
          <li key={place} data-kind={step.kind}>
            {step.kind === "decision" ? <DecisionView step={step} /> : <FailureView step={step} />}
          </li>
        ))}
      </ol>
    </Card>
  );
}

function Outcome({ asked, served }: { asked: string | null; served: string | null }) {
  return (
    <>
      {asked === null ? "The client named no model" : <>The client asked for <b>{asked}</b></>}
      {served === null ? ". No deployment answered." : <>; <b>{served}</b> has the request.</>}
    </>
  );
}

function FailureView({ step }: { step: RouteStep & { kind: "failure" } }) {
  return (
    <>
      <p>
        <Badge tone="bad">failed</Badge> <b>{step.name}</b> <code class="muted">{step.code}</code>
      </p>
      <p class="small muted">{step.message}</p>
    </>
  );
}

function DecisionView({ step }: { step: RouteStep & { kind: "decision" } }) {
  const scored = step.considered.some((one) => one.score !== null);
  return (
    <>
      <p>
        {step.chosen === null ? "No candidate takes requests" : <>Chose <b>{step.chosen}</b></>} by <b>{step.policy}</b>
        {POLICIES[step.policy] && <span class="muted">: {POLICIES[step.policy]}</span>}
      </p>
      <Table label={`Candidates of the decision by ${step.policy}`} class="candidates">
        <thead>
          <tr>
            <th>Candidate</th>
            <th>Reason</th>
            {scored && (
              <th class="num" title="Smaller is better.">
                Score
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {step.considered.map((one) => (
            <tr key={one.name} data-chosen={one.chosen}>
              <td>
                {one.name} {one.chosen && <Badge tone="good">chosen</Badge>}
              </td>
              <td>{one.reason}</td>
              {scored && <td class="num">{short(one.score)}</td>}
            </tr>
          ))}
        </tbody>
      </Table>
      {step.warnings.map((warning) => (
        <p key={warning} class="small">
          <Badge tone="warn">stale signal</Badge> {warning}
        </p>
      ))}
    </>
  );
}
