/** What draft tokens gain, and lose. */
import { count, percent } from "../../lib/format";
import { Card, Computed, Stat, Table } from "../../parts/basics";
import type { Plan } from "./api";

export function Speculation({ plan }: { plan: NonNullable<Plan["speculation"]> }) {
  const rows = [...new Set(plan.grid.map((cell) => cell.acceptance))];
  const columns = [...new Set(plan.grid.map((cell) => cell.drafts))];
  const cell = (acceptance: number, drafts: number): number | null =>
    plan.grid.find((one) => one.acceptance === acceptance && one.drafts === drafts)?.speedup ?? null;
  /** Below 1 it loses: -1 a little, -2 more than a tenth. */
  const heat = (speedup: number | null): number => {
    if (speedup === null) return 0;
    return speedup < 0.995 ? (speedup < 0.9 ? -2 : -1) : Math.min(5, 1 + Math.floor((speedup - 1) * 2.5));
  };
  return (
    <Card title="Speculative decoding" aside={<Computed />} note="Expected tokens per verification with acceptance a and k drafts: (1 − aᵏ⁺¹) / (1 − a).">
      <dl class="stats">
        <Stat name="Tokens per verification" value={plan.tokens_per_verification.toFixed(2)} detail={`a = ${plan.acceptance}, k = ${plan.drafts}`} />
        <Stat name="Speed-up" value={plan.speedup === null ? "–" : `${plan.speedup.toFixed(2)}×`} />
        <Stat name="Best" value={plan.best_speedup === null ? "–" : `${plan.best_speedup.toFixed(2)}×`} detail={plan.best_drafts === null ? "" : `k = ${plan.best_drafts}`} />
      </dl>
      <ul class="legend spaced">
        <li>
          <i data-heat="-2" /> slower than without drafts
        </li>
        <li>
          <i data-heat="5" /> faster
        </li>
      </ul>
      <Table label="Speed-up by acceptance and drafts" class="heat">
        <thead>
          <tr>
            <th>Acceptance</th>
            {columns.map((drafts) => (
              <th key={drafts} class="num">
                k = {drafts}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((acceptance) => (
            <tr key={acceptance}>
              <td>{percent(acceptance, 0)}</td>
              {columns.map((drafts) => {
                const speedup = cell(acceptance, drafts);
                return (
                  <td key={drafts} class="num" data-heat={heat(speedup)}>
                    {speedup === null ? "–" : `${speedup.toFixed(2)}×`}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </Table>
      <h3>By batch size, a = {plan.acceptance}, k = {plan.drafts}</h3>
      <Table label="Speed-up by batch size" class="heat">
        <thead>
          <tr>
            {plan.by_batch.map(({ batch }) => (
              <th key={batch} class="num">
                {count(batch)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          <tr>
            {plan.by_batch.map(({ batch, speedup }) => (
              <td key={batch} class="num" data-heat={heat(speedup)}>
                {speedup.toFixed(2)}×
              </td>
            ))}
          </tr>
        </tbody>
      </Table>
    </Card>
  );
}
