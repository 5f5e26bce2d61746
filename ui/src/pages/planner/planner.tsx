/** What a model would need, and give, on some hardware; with this server's own figures beside the theory. */
import { useEffect } from "preact/hooks";
import { Card, Empty, PageHeader, Problem } from "../../parts/basics";
import { Form } from "./form";
import { Results } from "./results";
import * as state from "./state";
import { TokenBudget, TokenCounter } from "./tokens";

export function Planner() {
  useEffect(state.follow, []);
  const { value: plan } = state.plan;
  const { value: problem } = state.problem;
  return (
    <>
      <PageHeader title="Planner" lesson="planner" lead={<>What a model needs and gives on some hardware, beside what this server measured. <code>penstock plan</code> says the same in a terminal.</>} />
      <div class="planner">
        <Form />
        <div class="stack">
          {problem && <Problem message={problem.message} onRetry={() => void state.loadPresets()} />}
          {plan ? (
            <Results plan={plan} />
          ) : (
            !problem && (
              <Card>
                <Empty icon="planner" title="Choose a model and hardware" />
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
