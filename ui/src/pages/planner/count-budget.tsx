/** The context by counts: how many tokens its parts may take. */
import { useSignal } from "@preact/signals";
import { count } from "../../lib/format";
import { facts } from "../../lib/live";
import { Card, Stat } from "../../parts/basics";
import { Slider } from "./slider";

const PARTS = [
  ["system", "System", "intake", 200],
  ["history", "History", "prefill", 1000],
  ["documents", "Documents", "cached", 2000],
  ["user", "User", "decode", 100],
  ["reserve", "Reserved for output", "wait", 500],
] as const;

const LONGEST = 1_048_576;

export function CountBudget() {
  const own = facts.value?.engine.context ?? 8192;
  const set = useSignal<Record<string, number>>({});
  const context = set.value.context ?? own;
  const value = (name: string, fallback: number): number => set.value[name] ?? fallback;
  const change = (name: string, next: number): void => {
    set.value = { ...set.value, [name]: next };
  };
  const used = PARTS.reduce((all, [name, , , fallback]) => all + value(name, fallback), 0);
  const whole = Math.max(context, used);
  return (
    <Card title="Token budget by counts" note="How many tokens the parts of a prompt may take before the context is full.">
      <div class="sliders-row">
        <Slider label="Context" min={512} max={LONGEST} log value={context} onInput={(next) => change("context", next)} />
        {PARTS.map(([name, label, , fallback]) => (
          <Slider key={name} label={`${label} (tokens)`} min={0} max={context} value={Math.min(context, value(name, fallback))} onInput={(next) => change(name, next)} />
        ))}
      </div>
      <div class="memory-bar" role="img" aria-label={`${count(used)} of ${count(context)} tokens`}>
        {PARTS.map(([name, , colour, fallback]) => (
          <i key={name} data-colour={colour} style={{ width: `${(100 * value(name, fallback)) / whole}%` }} />
        ))}
      </div>
      <ul class="legend">
        {PARTS.map(([name, label, colour, fallback]) => (
          <li key={name}>
            <i data-colour={colour} /> {label} <b>{count(value(name, fallback))}</b>
          </li>
        ))}
      </ul>
      <dl class="stats spaced">
        <Stat name="Used" value={count(used)} detail={`of ${count(context)}`} />
        <Stat
          name={used <= context ? "Free" : "Over the context"}
          tone={used <= context ? "good" : "bad"}
          value={<span data-plan="counts_free">{count(Math.abs(context - used))}</span>}
          detail={used <= context ? "for more documents or a longer history" : "shorten documents or history"}
        />
        <Stat name="Longest output" value={count(Math.max(0, context - used + value("reserve", 500)))} detail="what the prompt leaves" />
      </dl>
    </Card>
  );
}
