import { count, bytes, percent, seconds } from "../../lib/format";
import { CIRCUITS, POLICIES, STATES, stateTone } from "../../lib/labels";
import { Badge, Button, Card, Problem, Table } from "../../parts/basics";
import type { IconName } from "../../parts/icons";
import { Adapters } from "./adapters";
import { ACTIONS, type Action, type Adapter, type Deployment, type Model } from "./api";

const ICONS: Record<Action, IconName> = { load: "play", unload: "stop", sleep: "moon", wake: "sun", remove: "trash" };

/** What may be done with a model in its state. */
function actionsOf(model: Model, last: boolean): Action[] {
  if (model.kind === "route") return [];
  const remove: Action[] = last ? [] : ["remove"];
  if (model.kind === "upstream") return remove;
  const unload: Action[] = model.pinned ? [] : ["unload"];
  if (model.state === "unloaded") return ["load", ...remove];
  if (model.state === "asleep") return ["wake", ...unload, ...remove];
  return model.state === "ready" ? ["sleep", ...unload, ...remove] : remove;
}

export function ModelCard({
  model,
  adapters,
  busy,
  problem,
  last,
  onAction,
  onRemoveAdapter,
}: {
  model: Model;
  adapters: Adapter[];
  busy: Action | undefined;
  problem: string;
  last: boolean;
  onAction: (action: Action) => void;
  onRemoveAdapter: (name: string) => void;
}) {
  return (
    <Card
      class="model"
      title={
        <span class="row">
          <span class="name">{model.id}</span>
          <Badge tone={stateTone(model.state)} title={STATES[model.state]}>
            {model.state}
          </Badge>
          <Badge>{model.kind}</Badge>
        </span>
      }
      aside={
        <div class="row" data-actions={model.id}>
          {busy && <span role="status">{ACTIONS[busy].busy}</span>}
          {actionsOf(model, last).map((action) => (
            <Button
              key={action}
              icon={ICONS[action]}
              kind={action === "remove" ? "danger" : "plain"}
              aria-label={`${ACTIONS[action].label} ${model.id}`}
              disabled={busy !== undefined}
              onClick={() => onAction(action)}
            >
              {ACTIONS[action].label}
            </Button>
          ))}
        </div>
      }
    >
      {problem && <Problem message={problem} />}
      <Facts model={model} />
      {model.deployments.length > 0 && <Deployments model={model} />}
      {adapters.length > 0 && <Adapters model={model} adapters={adapters} onRemove={onRemoveAdapter} />}
    </Card>
  );
}

function Facts({ model }: { model: Model }) {
  const { price } = model;
  const rows: [string, preact.ComponentChildren][] = [];
  if (model.policy) rows.push(["Policy", `${model.policy}: ${POLICIES[model.policy] ?? ""}`], ["Models", model.models.join(" → ")]);
  rows.push(["Context", model.max_model_len === null ? "not known" : `${count(model.max_model_len)} tokens`]);
  if (model.kind !== "route") rows.push(["Price", price === null ? "none" : <Price price={price} />]);
  if (model.kind === "upstream") rows.push(["Upstream", model.owned_by]);
  if (model.region) rows.push(["Region", model.region]);
  if (model.aliases.length) rows.push(["Aliases", model.aliases.join(", ")]);
  if (model.fallback.length) rows.push(["Fallback", model.fallback.map(({ model: name, max_tokens: most }) => (most === null ? name : `${name} (max_tokens ${count(most)})`)).join(" → ")]);
  if (model.kind === "local") rows.push(["Stays loaded", residency(model)]);
  if (model.scaling) rows.push(["Replicas", <Replicas scaling={model.scaling} />]);
  rows.push(["Capabilities", model.capabilities.length ? <Capabilities names={model.capabilities} /> : "none"]);
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name} class={name === "Capabilities" ? "whole" : ""}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Replicas({ scaling }: { scaling: NonNullable<Model["scaling"]> }) {
  const { replicas, min_replicas: least, max_replicas: most, demand } = scaling;
  return (
    <>
      {count(replicas)}
      {least !== most && ` of ${least} to ${most}`}{" "}
      <span class="muted" title="How many replicas the load would fill.">
        demand {demand.toFixed(2)}
      </span>
    </>
  );
}

function residency({ pinned, expires_s: left, state }: Model): string {
  if (pinned) return "always (pinned)";
  if (state === "unloaded") return "not loaded: the next request loads it";
  return left === null ? "until room is needed" : `${seconds(Math.round(left))} more if idle`;
}

function Price({ price }: { price: NonNullable<Model["price"]> }) {
  const usd = (value: number): string => `$${value}`;
  return (
    <>
      {usd(price.input)} in, {usd(price.output)} out
      {price.cached_input !== null && `, ${usd(price.cached_input)} cached`} <span class="muted">per 1M tokens</span>
    </>
  );
}

function Capabilities({ names }: { names: string[] }) {
  return (
    <span class="row tight">
      {names.map((name) => (
        <Badge key={name}>{name.replaceAll("_", " ")}</Badge>
      ))}
    </span>
  );
}

function Deployments({ model }: { model: Model }) {
  return (
    <Table label={`Deployments of ${model.id}`} class="deployments">
      <thead>
        <tr>
          <th>{model.kind === "upstream" ? "Upstream" : "Replica"}</th>
          <th>State</th>
          <th class="num">Open</th>
          {model.kind === "local" && (
            <>
              <th class="num">Waiting</th>
              <th class="num">KV use</th>
              <th class="num">Memory</th>
              <th class="num">Restarts</th>
            </>
          )}
          <th class="num">TTFT</th>
          <th class="num">Failures</th>
          <th>Circuit</th>
        </tr>
      </thead>
      <tbody>
        {model.deployments.map((one) => (
          <tr key={one.name} data-deployment={one.name}>
            <td>{one.name}</td>
            <td>
              <Badge tone={stateTone(one.state)} title={STATES[one.state]}>
                {one.state}
              </Badge>
            </td>
            <td class="num">{count(one.open)}</td>
            {model.kind === "local" && (
              <>
                <td class="num">{count(one.waiting)}</td>
                <td class="num">{percent(one.kv_use, 0)}</td>
                <td class="num">{bytes(memory(one))}</td>
                <td class="num">{count(one.restarts)}</td>
              </>
            )}
            <td class="num">{seconds(one.ttft_s)}</td>
            <td class="num">{count(one.breaker.failures)}</td>
            <td>
              <Circuit deployment={one} />
            </td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

const memory = ({ weights_bytes: weights, kv_bytes: kv, state }: Deployment): number | null =>
  weights === null || state === "asleep" ? null : weights + (kv ?? 0);

function Circuit({ deployment: { breaker, stale } }: { deployment: Deployment }) {
  const { state, wait_s: wait } = breaker;
  return (
    <span class="row tight">
      <Badge tone={state === "closed" ? "good" : state === "open" ? "bad" : "warn"} title={CIRCUITS[state]}>
        {state.replace("_", " ")}
        {wait > 0 && `, ${seconds(wait)}`}
      </Badge>
      {stale.map((signal) => (
        <Badge key={signal} tone="warn" title="Routing does not rely on this signal: it is old, or was wrong of late.">
          {signal} stale
        </Badge>
      ))}
    </span>
  );
}
