/** Follow one request: step by step through its life, with its own data. */
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { RequestDetail } from "../../lib/api";
import { count, duration } from "../../lib/format";
import { errorMessage } from "../../lib/http";
import { connection, requests, requestsVersion } from "../../lib/live";
import { go, route } from "../../lib/router";
import { useShortcuts } from "../../lib/shortcuts";
import { Button, Card, Field, Problem } from "../../parts/basics";
import { BatchStep, CacheStep, SampleStep } from "./follow-engine";
import { EndStep, QueueStep, RequestStep, StreamStep, TemplateStep, TokenStep } from "./follow-frontend";
import { type Texts, fetchDetail, fetchTexts, problem, send, sending } from "./follow-state";

export interface StepProps {
  detail: RequestDetail;
  texts: Texts | null;
}

const STEPS = [
  { name: "request", title: "Request", view: RequestStep },
  { name: "template", title: "Template", view: TemplateStep },
  { name: "tokens", title: "Tokens", view: TokenStep },
  { name: "queue", title: "Queue", view: QueueStep },
  { name: "cache", title: "Prefix cache", view: CacheStep },
  { name: "batch", title: "Batch", view: BatchStep },
  { name: "sample", title: "Sample", view: SampleStep },
  { name: "stream", title: "Stream", view: StreamStep },
  { name: "end", title: "End", view: EndStep },
] as const;

const POLL_MS = 400;

export function Follow() {
  const id = route.value.rest[1];
  return (
    <div class="stack follow">
      <Send />
      {id ? <Life key={id} id={id} /> : <Recent />}
    </div>
  );
}

function Send() {
  const prompt = useSignal("Why is the sky blue?");
  const tokens = useSignal(24);
  const temperature = useSignal(0.8);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const id = await send(prompt.value, tokens.value, temperature.value);
    if (id) go("pipeline", "follow", id);
  };
  return (
    <Card title="Send one">
      <form class="follow-send" onSubmit={(event) => void submit(event)}>
        <Field label="Prompt">
          {(id) => <input id={id} type="text" required maxLength={2000} value={prompt.value} onInput={(event) => (prompt.value = event.currentTarget.value)} />}
        </Field>
        <Field label="max_tokens">
          {(id) => <input id={id} type="number" min={1} max={200} value={tokens.value} onChange={(event) => (tokens.value = Number(event.currentTarget.value) || 1)} />}
        </Field>
        <Field label="temperature">
          {(id) => (
            <input id={id} type="number" min={0} max={2} step={0.1} value={temperature.value} onChange={(event) => (temperature.value = Number(event.currentTarget.value))} />
          )}
        </Field>
        <Button kind="primary" type="submit" icon="send" disabled={sending.value || connection.value !== "live"}>
          {sending.value ? "Running" : "Send and follow"}
        </Button>
      </form>
      {problem.value && <Problem message={problem.value} />}
    </Card>
  );
}

function Recent() {
  requestsVersion.value;
  const latest = [...requests.values()].sort((a, b) => b.number - a.number).slice(0, 8);
  return (
    <Card title="Or pick one" note="Of your own tenant. Texts are there if the server keeps them (--keep-texts), or if this page sent the request.">
      <ul class="follow-list">
        {latest.map((one) => (
          <li key={one.number}>
            <a href={`#/pipeline/follow/${one.number}`}>
              #{one.number} {one.kind}
            </a>
            <span class="muted">
              {count(one.prompt_tokens)} + {count(one.output_tokens)} tokens, {one.finish ?? one.state}, {duration(one.e2e_us)}
            </span>
          </li>
        ))}
      </ul>
      {!latest.length && <p class="muted">No requests yet.</p>}
    </Card>
  );
}

function Life({ id }: { id: string }) {
  const detail = useSignal<RequestDetail | null>(null);
  const texts = useSignal<Texts | null>(null);
  const failed = useSignal("");
  const place = useSignal(0);
  useEffect(() => {
    const abort = new AbortController();
    const load = async (): Promise<void> => {
      for (;;) {
        detail.value = await fetchDetail(id, abort.signal);
        if (detail.value.state === "done") break;
        await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      }
      texts.value = await fetchTexts(detail.value);
    };
    load().catch((error: unknown) => {
      if (!abort.signal.aborted) failed.value = errorMessage(error);
    });
    return () => abort.abort();
  }, [id]);
  const move = (by: number): void => {
    place.value = Math.max(0, Math.min(STEPS.length - 1, place.value + by));
  };
  useShortcuts("Follow one request", [
    { keys: "j", label: "Next stage", run: () => move(1) },
    { keys: "k", label: "Previous stage", run: () => move(-1) },
  ]);
  const found = detail.value;
  const { title, view: View } = STEPS[place.value]!;
  return (
    <>
      {failed.value && <Problem message={failed.value} />}
      {found && (
        <Card
          title={`Request #${found.number}: ${title}`}
          aside={
            <>
              <Button icon="left" disabled={place.value === 0} label="Previous stage" onClick={() => move(-1)} />
              <Button icon="right" disabled={place.value === STEPS.length - 1} label="Next stage" onClick={() => move(1)} />
            </>
          }
        >
          <ol class="follow-steps">
            {STEPS.map((step, at) => (
              <li key={step.name}>
                <button type="button" aria-current={at === place.value ? "step" : undefined} data-step={step.name} onClick={() => (place.value = at)}>
                  {step.title}
                </button>
              </li>
            ))}
          </ol>
          <div class="follow-body" data-shown={STEPS[place.value]!.name}>
            <View detail={found} texts={texts.value} />
          </div>
          <p class="small">
            <a href={`#/requests/${found.number}`}>All of its trace</a>
          </p>
        </Card>
      )}
    </>
  );
}
