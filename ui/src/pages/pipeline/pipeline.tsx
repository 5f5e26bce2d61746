/** The front page: the whole pipeline, alive. Its tabs lead on to one request, to the model, and to why it is built so. */
import { useSignal } from "@preact/signals";
import { count, duration, short } from "../../lib/format";
import { connection, stats } from "../../lib/live";
import { route } from "../../lib/router";
import { Card, PageHeader, Problem, Stat } from "../../parts/basics";
import { Lazy, type Load } from "../../parts/lazy";
import { answer, rates, usePipeline } from "./data";
import { Diagram } from "./diagram";
import { StageDetail } from "./stage-detail";
import { TimeBar } from "./time-bar";

const TABS: readonly { name: string; title: string; lead: string; load?: Load }[] = [
  { name: "", title: "Now", lead: "Every request passes these stages. The figures are of this server, now; select a stage for what it does." },
  {
    name: "follow",
    title: "Follow one request",
    lead: "Pick a request or send one, and go through its life with the data of each stage.",
    load: () => import("./follow").then((page) => page.Follow),
  },
  {
    name: "inside",
    title: "Inside the model",
    lead: "From embeddings through layers and attention to logits: the tensors of the model that this server runs.",
    load: () => import("./inside").then((page) => page.Inside),
  },
  {
    name: "why",
    title: "Why",
    lead: "Why servers are built like this: with and without, side by side, measured here or computed by the planner.",
    load: () => import("./why").then((page) => page.Why),
  },
];

export function Pipeline() {
  const tab = TABS.find(({ name }) => name === (route.value.rest[0] ?? "")) ?? TABS[0]!;
  return (
    <>
      <PageHeader title="Pipeline" terms="pipeline" lead={tab.lead}>
        {TABS.length > 1 && (
          <nav class="page-tabs" aria-label="Pipeline">
            {TABS.map(({ name, title }) => (
              <a key={name} href={`#/pipeline${name && `/${name}`}`} aria-current={name === tab.name ? "page" : undefined}>
                {title}
              </a>
            ))}
          </nav>
        )}
      </PageHeader>
      {tab.load ? <Lazy key={tab.name} load={tab.load} /> : <Now />}
    </>
  );
}

function Now() {
  const selected = useSignal(route.value.query.get("stage") ?? "");
  usePipeline();
  const told = answer.value;
  const select = (name: string): void => {
    selected.value = name;
  };
  return (
    <div class="stack pipeline">
      <Card>
        {connection.value === "off" && <Problem message="This server records no events (--no-events): there are no figures to show." />}
        <LoadLine />
        <Diagram answer={told} rates={rates.value} selected={selected.value || "decode"} onSelect={select} />
      </Card>
      <StageDetail name={selected.value || "decode"} answer={told} rates={rates.value} />
      <TimeBar answer={told} onSelect={select} />
    </div>
  );
}

/** The state of the server in one line. */
function LoadLine() {
  const now = stats.value;
  const live = connection.value === "live" && now ? now : null;
  return (
    <dl class="stats pipeline-load">
      <Stat name="Running" value={count(live?.running)} />
      <Stat name="Waiting" value={count(live?.waiting)} />
      <Stat name="Output tok/s" value={short(live?.tokens_per_s)} />
      <Stat name="Prompt tok/s" value={short(live?.prompt_tokens_per_s)} />
      <Stat name="TTFT p50" value={duration(live?.ttft_us_p50)} />
      <Stat name="Step" value={duration(live?.step_us_mean)} />
    </dl>
  );
}
