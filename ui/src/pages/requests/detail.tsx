import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { RequestDetail, SequenceDetail } from "../../lib/api";
import { ago, clock, count, duration, percent, usd } from "../../lib/format";
import { fetchJson, errorMessage } from "../../lib/http";
import { facts, requests, requestsVersion, wallClock } from "../../lib/live";
import { go } from "../../lib/router";
import { FINISHES, STAGES, STAGE_COLOURS, WAITS, finishTone } from "../../lib/labels";
import { Badge, Button, Card, CopyButton, Problem, Stat, Table } from "../../parts/basics";
import { ExplanationView } from "../../parts/explanation";
import { Context } from "./context";
import { Refusal } from "./refusal";
import { Routing } from "./routing";
import { elapsed, placeOf, stateOf } from "./row";
import { Safety } from "./safety";
import { Trace } from "./trace";

export function Detail({ id }: { id: string }) {
  const request = useSignal<RequestDetail | null>(null);
  const problem = useSignal("");
  requestsVersion.value;
  const summary = requests.get(request.value?.number ?? Number(id));
  const turn = summary && summary.state !== "done" ? requestsVersion.value : summary?.end; // reload while it runs
  useEffect(() => {
    const abort = new AbortController();
    fetchJson<RequestDetail>(`/observe/requests/${encodeURIComponent(id)}`, { signal: abort.signal }).then(
      (found) => ((request.value = found), (problem.value = "")),
      (error: unknown) => {
        if (!abort.signal.aborted) problem.value = errorMessage(error);
      },
    );
    return () => abort.abort();
  }, [id, turn]);
  const found = request.value;
  return (
    <section class="split-detail" aria-label={`Request ${id}`}>
      <header class="detail-head">
        <Button icon="left" kind="quiet" label="Back to list" onClick={() => go("requests")} />
        <h2>
          Request {found ? `#${found.number}` : id} <span class="muted">{found?.kind}</span>
        </h2>
        {found && <Badge tone={finishTone(found.finish)}>{stateOf(found)}</Badge>}
        <span class="spacer" />
        {found && (
          <span class="small muted">
            {clock(wallClock(found.t))}, {ago(wallClock(found.t))}
          </span>
        )}
      </header>
      {problem.value && <Problem message={problem.value} />}
      {found && <Body request={found} />}
    </section>
  );
}

function Body({ request }: { request: RequestDetail }) {
  const total = elapsed(request);
  return (
    <div class="stack">
      <Card>
        <dl class="stats">
          <Stat name="Total" value={duration(total)} />
          <Stat name="TTFT" value={duration(request.ttft_us)} />
          <Stat name="Queue" value={duration(request.queue_us)} />
          <Stat name="Generation tok/s" value={request.tokens_per_s?.toFixed(1) ?? "–"} />
          <Stat
            name="Prompt"
            value={count(request.prompt_tokens)}
            detail={request.cached_tokens === null ? "" : `${count(request.cached_tokens)} cached`}
          />
          <Stat name="Output" value={count(request.output_tokens)} />
          {request.cost_usd !== null && <Stat name="Cost" value={usd(request.cost_usd)} />}
        </dl>
      </Card>
      {request.error && <Refusal request={request} error={request.error} />}
      {request.safety.length > 0 && <Safety hits={request.safety} />}
      <Card title="Trace">
        <Trace request={request} />
      </Card>
      {request.route.length > 0 && <Routing request={request} />}
      {request.context && <Context context={request.context} />}
      <Stages request={request} />
      {request.sequences.map((sequence) => (
        <Sequence key={sequence.seq} sequence={sequence} many={request.sequences.length > 1} slow={request.slow_client} />
      ))}
      <More request={request} />
    </div>
  );
}

const SMALL_WAIT = 0.05; // of the time in the queue
const SMALL = 0.01; // of the latency

/** Stages on the critical path. Those below 1% are folded into one line, unless there is but one. */
function Stages({ request }: { request: RequestDetail }) {
  const all = useSignal(false);
  const sum = request.stages.reduce((all, stage) => all + stage.us, 0);
  const small = request.stages.filter((stage) => stage.us < SMALL * sum);
  const folded = small.length > 1 && !all.value;
  const spent = small.reduce((all, stage) => all + stage.us, 0);
  return (
    <Card title="Latency by stage" note="Stages on the critical path; they add up to the end-to-end latency.">
      <div class="stage-bar" aria-hidden="true">
        {request.stages.map((stage, place) => (
          <i
            key={place}
            data-colour={STAGE_COLOURS[stage.name] ?? "output"}
            style={{ flexGrow: stage.us }}
            title={`${STAGES[stage.name] ?? stage.name}: ${duration(stage.us)}`}
          />
        ))}
      </div>
      <Table label="Stages" class="stages">
        <thead>
          <tr>
            <th>Stage</th>
            <th class="num">Time</th>
            <th class="num">Share</th>
          </tr>
        </thead>
        <tbody>
          {request.stages.map((stage, place) => (
            <tr key={place} data-stage={stage.name} data-us={stage.us} hidden={folded && small.includes(stage)}>
              <td>
                <span class="swatch">
                  <i data-colour={STAGE_COLOURS[stage.name] ?? "output"} />
                  {STAGES[stage.name] ?? stage.name}
                </span>
              </td>
              <td class="num">{duration(stage.us)}</td>
              <td class="num">{percent(stage.us / Math.max(1, sum))}</td>
            </tr>
          ))}
          {small.length > 1 && (
            <tr class="folded">
              <td>
                <button type="button" class="link" aria-expanded={!folded} onClick={() => (all.value = !all.value)}>
                  {folded ? `${small.length} stages below 1%` : "Fold stages below 1%"}
                </button>
              </td>
              <td class="num">{folded && duration(spent)}</td>
              <td class="num">{folded && percent(spent / Math.max(1, sum))}</td>
            </tr>
          )}
        </tbody>
        <tfoot>
          <tr data-total={sum} data-e2e={request.e2e_us ?? ""}>
            <th>Total</th>
            <th class="num">{duration(sum)}</th>
            <th class="num">100%</th>
          </tr>
        </tfoot>
      </Table>
    </Card>
  );
}

function Sequence({ sequence, many, slow }: { sequence: SequenceDetail; many: boolean; slow: boolean }) {
  const { wait, preemptions, finish, stop, inter_token_us: gaps } = sequence;
  const waited = Object.values(wait?.by_us ?? {}).reduce((all, us) => all + us, 0);
  const reasons = Object.entries(wait?.by_us ?? {})
    .filter(([, us]) => us > 0 && us >= SMALL_WAIT * waited)
    .sort((a, b) => b[1] - a[1]);
  const rest = waited - reasons.reduce((all, [, us]) => all + us, 0);
  return (
    <Card title={many ? `Sequence ${sequence.seq} (prompt ${sequence.prompt + 1}, choice ${sequence.choice + 1})` : "Scheduling and finish"}>
      <dl class="why">
        <div>
          <dt>Queue wait</dt>
          <dd>
            {reasons.length === 0 ? "None: admitted at once." : null}
            {reasons.map(([reason, us]) => (
              <p key={reason}>
                <b>{duration(us)}</b>: {WAITS[reason] ?? reason}
              </p>
            ))}
            {rest > 0 && <p class="muted">{duration(rest)} for other reasons.</p>}
            {wait && wait.ahead > 0 && <p class="muted">{count(wait.ahead)} sequences were ahead in the queue.</p>}
          </dd>
        </div>
        {preemptions.length > 0 && (
          <div>
            <dt>Preempted</dt>
            <dd>
              {preemptions.map((one) => (
                <p key={one.step}>
                  in step #{one.step}: {WAITS[one.why] ?? one.why}
                </p>
              ))}
            </dd>
          </div>
        )}
        <div>
          <dt>Prefix cache</dt>
          <dd>
            {sequence.cache ? (
              <ExplanationView explanation={sequence.cache} />
            ) : (
              `${count(sequence.cached_tokens)} of ${count(sequence.prompt_tokens)} prompt tokens`
            )}
          </dd>
        </div>
        <div>
          <dt>Finish reason</dt>
          <dd>
            {finish === null ? "Still running." : (FINISHES[finish] ?? finish)}
            {stop !== null && (
              <>
                {" "}
                <code>{String(stop)}</code>
              </>
            )}
          </dd>
        </div>
        {gaps?.p50 != null && (
          <div>
            <dt>ITL</dt>
            <dd>
              p50 {duration(gaps.p50)}, p95 {duration(gaps.p95)}, max {duration(gaps.max)} (inter-token latency)
              {slow && <p class="muted">Slow client: writes to its socket had to wait.</p>}
            </dd>
          </div>
        )}
      </dl>
    </Card>
  );
}

function More({ request }: { request: RequestDetail }) {
  const params = Object.entries(request.params);
  return (
    <Card>
      <dl class="why">
        <div>
          <dt>Ids</dt>
          <dd>
            <span class="row">
              <code class="ellipsis">{request.id}</code>
              <CopyButton text={() => request.id} label="Copy id" />
            </span>
            <code class="muted">{request.request_id}</code>
          </dd>
        </div>
        {request.model !== null && (
          <div>
            <dt>Model</dt>
            <dd>
              {placeOf(request)}
              {request.asked !== null && request.asked !== request.model && <span class="muted"> (asked for {request.asked})</span>}
            </dd>
          </div>
        )}
        {params.length > 0 && (
          <div>
            <dt>Parameters</dt>
            <dd>
              {params.map(([name, value]) => (
                <p key={name}>
                  <code>
                    {name} = {JSON.stringify(value)}
                  </code>
                </p>
              ))}
            </dd>
          </div>
        )}
      </dl>
      {request.texts ? (
        <details>
          <summary>Texts</summary>
          {[...request.texts.prompts, ...request.texts.answers].map((text, place) => (
            <pre key={place} class="snippet" dir="auto" tabIndex={0}>
              {text}
            </pre>
          ))}
        </details>
      ) : (
        facts.value && !facts.value.keep_texts && <p class="small muted">Texts are not stored; see --keep-texts.</p>
      )}
      <details>
        <summary>{count(request.events.length)} events</summary>
        <Table label="Events">
          <thead>
            <tr>
              <th class="num">At</th>
              <th>Event</th>
              <th>Details</th>
            </tr>
          </thead>
          <tbody>
            {request.events.slice(0, 500).map(({ t, name, seq, ...details }, place) => (
              <tr key={place}>
                <td class="num">{duration(t - request.t)}</td>
                <td>
                  {name} {seq !== null && <span class="muted">seq {seq}</span>}
                </td>
                <td class="small muted">
                  {Object.entries(details)
                    .map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : String(value)}`)
                    .join(", ")}
                </td>
              </tr>
            ))}
          </tbody>
        </Table>
      </details>
    </Card>
  );
}
