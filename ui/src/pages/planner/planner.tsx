/** Capacity planner: memory and speed of a model on some hardware, beside this server's measurements. */
import { useEffect } from "preact/hooks";
import { Card, Empty, PageHeader, Problem } from "../../parts/basics";
import { Form } from "./form";
import { Results } from "./results";
import * as state from "./state";
import { TokenBudget } from "./budget";
import { TokenCounter } from "./tokens";

export function Planner() {
  useEffect(state.follow, []);
  const { value: plan } = state.plan;
  const { value: problem } = state.problem;
  return (
    <>
      <PageHeader title="Planner" terms="planner" lead={<>Memory, speed, replicas and cost of a model on some hardware, beside this server’s measurements. In a terminal: <code>penstock plan</code>.</>} />
      <div class="planner">
        <Form />
        <div class="stack">
          {problem && <Problem message={problem.message} onRetry={() => void state.loadPresets()} />}
          {plan ? (
            <Results plan={plan} />
          ) : (
            !problem && (
              <Card>
                <Empty icon="planner" title="Select a model and hardware" />
              </Card>
            )
          )}
          <TokenCounter />
          <TokenBudget />
        </div>
      </div>
    </>
  );
}
