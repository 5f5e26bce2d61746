/** Replicas for a load, and what a token costs: by the hour, and at an API's prices. */
import { count, percent, seconds, short } from "../../lib/format";
import { Card, Computed, Empty, Stat, Table } from "../../parts/basics";
import type { Plan } from "./api";
import { money } from "./figures";

export function LoadAndCost({ plan }: { plan: Plan }) {
  const hint = [
    plan.replicas ? "" : "requests per second",
    plan.cost ? "" : "a device price per hour",
    plan.prices ? "" : "API prices per million tokens",
  ].filter(Boolean);
  return (
    <>
      {plan.replicas && <Replicas plan={plan.replicas} />}
      {plan.cost && <Cost cost={plan.cost} />}
      {plan.prices && <Prices prices={plan.prices} />}
      {hint.length > 0 && (
        <Card>
          <Empty icon="planner" title={plan.memory.fits ? `Set ${hint.join(", ")}` : "Does not fit"}>
            {plan.memory.fits ? "Replicas, cost from hours and cost from prices appear here." : "Nothing can be served on this hardware: choose other hardware or a smaller format."}
          </Empty>
        </Card>
      )}
    </>
  );
}

function Replicas({ plan }: { plan: NonNullable<Plan["replicas"]> }) {
  return (
    <Card title={`Replicas for ${short(plan.rate)} requests per second`} aside={<Computed />}>
      <dl class="stats">
        <Stat name="Replicas" value={count(plan.replicas)} detail={`${count(plan.devices)} devices`} />
        <Stat name="Utilization" value={percent(plan.utilisation, 0)} detail={`${count(plan.in_flight)} requests in flight`} />
        <Stat name="Queue wait p95" value={seconds(plan.wait_p95_s)} detail={`${percent(plan.wait_probability)} of requests wait`} />
        <Stat name="Request latency" value={seconds(plan.request_s)} detail={`TTFT ${seconds(plan.first_token_s)}`} />
      </dl>
      <Table label="Replicas">
        <thead>
          <tr>
            <th class="num">Replicas</th>
            <th class="num">Utilization</th>
            <th class="num">Queue wait p95</th>
          </tr>
        </thead>
        <tbody>
          {plan.sizes.map((size) => (
            <tr key={size.replicas} data-chosen={size.replicas === plan.replicas}>
              <td class="num">{size.replicas === plan.replicas ? <b>{size.replicas}</b> : size.replicas}</td>
              <td class="num">{percent(size.utilisation, 0)}</td>
              <td class="num">{size.stable ? seconds(size.wait_p95_s) : "unstable: queue grows without bound"}</td>
            </tr>
          ))}
        </tbody>
      </Table>
    </Card>
  );
}

function Cost({ cost }: { cost: NonNullable<Plan["cost"]> }) {
  return (
    <Card title="Cost per million tokens" aside={<Computed />} note={`Unit: that of the price, ${cost.hour_price} per device-hour. Assumes full utilization unless a request rate is set.`}>
      <dl class="stats">
        <Stat name="Input" value={money(cost.input_per_million)} />
        <Stat name="Output" value={money(cost.output_per_million)} />
        <Stat name="Blended" value={money(cost.blended_per_million)} />
        {cost.at_rate_per_million !== null && <Stat name="At the request rate" value={money(cost.at_rate_per_million)} detail="idle time included" />}
      </dl>
    </Card>
  );
}

function Prices({ prices }: { prices: NonNullable<Plan["prices"]> }) {
  const use = prices.break_even_utilisation;
  return (
    <Card title="At an API’s prices" aside={<Computed />} note={`${money(prices.input_price)} per million input tokens, ${money(prices.output_price)} per million output tokens.`}>
      <dl class="stats">
        <Stat name="Per request" value={prices.per_request.toPrecision(3)} />
        <Stat name="Blended, 1M tokens" value={<span data-plan="api_blended">{money(prices.blended_per_million)}</span>} />
        {prices.per_hour !== null && <Stat name="Per hour" value={money(prices.per_hour)} detail={prices.own_per_hour === null ? "at the request rate" : `own devices: ${money(prices.own_per_hour)}`} />}
        {prices.break_even_rate !== null && (
          <Stat
            name="Break-even"
            value={`${short(prices.break_even_rate)} requests/s`}
            tone={use !== null && use > 1 ? "bad" : undefined}
            detail={use === null ? "" : use > 1 ? "more than one replica can serve" : `${percent(use, 0)} of a replica`}
          />
        )}
      </dl>
    </Card>
  );
}
