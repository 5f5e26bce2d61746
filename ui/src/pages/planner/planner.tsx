/** Capacity planner and calculators: memory, speed, hardware, load, cost, speculation and tokens, one tab each. */
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { route } from "../../lib/router";
import { Badge, Card, Empty, PageHeader, Problem } from "../../parts/basics";
import type { Plan } from "./api";
import { TokenBudget } from "./budget";
import { CountBudget } from "./count-budget";
import { LoadAndCost } from "./cost";
import { Form } from "./form";
import { Parallel, SideBySide } from "./hardware";
import { KvCalculator, Memory } from "./memory";
import { Speculation } from "./speculation";
import { LatencyCalculator, Measured, Profiles, Speed } from "./speed";
import * as state from "./state";
import { TokenCounter } from "./tokens";

const TABS = [
  ["memory", "Memory and KV"],
  ["speed", "Speed and latency"],
  ["hardware", "Hardware"],
  ["cost", "Load and cost"],
  ["speculation", "Speculation"],
  ["tokens", "Token budget"],
] as const;

export function Planner() {
  useEffect(state.follow, []);
  const tab = TABS.find(([name]) => name === route.value.rest[0])?.[0] ?? "memory";
  return (
    <>
      <PageHeader title="Planner" terms="planner" lead={<>Memory, speed, replicas and cost of a model on some hardware, beside this server’s measurements. In a terminal: <code>penstock plan</code>.</>} />
      <nav class="tabs" aria-label="Parts of the planner">
        {TABS.map(([name, title]) => (
          <a key={name} href={`#/planner/${name}`} aria-current={name === tab ? "page" : undefined}>
            {title}
          </a>
        ))}
      </nav>
      {tab === "tokens" ? (
        <div class="stack">
          <CountBudget />
          <TokenBudget />
          <TokenCounter />
        </div>
      ) : (
        <div class="planner">
          <Form />
          <Results tab={tab} />
        </div>
      )}
    </>
  );
}

function Results({ tab }: { tab: string }) {
  const { value: plan } = state.plan;
  const { value: problem } = state.problem;
  return (
    <div class="stack">
      {problem && <Problem message={problem.message} onRetry={() => void state.loadPresets()} />}
      {plan ? (
        <>
          {plan.not_run.length > 0 && (
            <div class="not-run" role="note">
              <Badge tone="warn">Not in Penstock yet</Badge>
              <ul>
                {plan.not_run.map((sentence) => (
                  <li key={sentence}>{sentence}</li>
                ))}
              </ul>
            </div>
          )}
          <Part tab={tab} plan={plan} />
          <Card title="Assumptions">
            <ul class="notes">
              {plan.notes.map((note) => (
                <li key={note}>{note}</li>
              ))}
            </ul>
          </Card>
        </>
      ) : (
        !problem && (
          <Card>
            <Empty icon="planner" title={state.model.value && state.hardware.value ? "Computing the plan" : "Loading models and hardware"} />
          </Card>
        )
      )}
    </div>
  );
}

function Part({ tab, plan }: { tab: string; plan: Plan }): ComponentChildren {
  if (tab === "speed")
    return (
      <>
        {plan.measured && <Measured measured={plan.measured} />}
        <LatencyCalculator plan={plan} />
        <Speed plan={plan} />
        <Profiles plan={plan} />
      </>
    );
  if (tab === "hardware")
    return (
      <>
        <SideBySide />
        <Parallel plan={plan} />
      </>
    );
  if (tab === "cost") return <LoadAndCost plan={plan} />;
  if (tab === "speculation") return plan.speculation && <Speculation plan={plan.speculation} />;
  return (
    <>
      <Memory plan={plan} />
      <KvCalculator plan={plan} />
    </>
  );
}
