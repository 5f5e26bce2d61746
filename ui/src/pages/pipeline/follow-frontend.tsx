/** The stages of the frontend: what came in, and what went out. */
import { FINISHES, WAITS } from "../../lib/labels";
import { bytes, count, duration, usd, visible } from "../../lib/format";
import { Stat, Table } from "../../parts/basics";
import type { StepProps } from "./follow";
import { ownOf } from "./follow-state";

const SHOWN_TOKENS = 600;
const SHOWN_PIECES = 120;
const HUES = 6;

export function NoTexts() {
  return <p class="muted">The texts of this request are not kept: start the server with --keep-texts, or send one from this page.</p>;
}

const stageUs = (detail: StepProps["detail"], ...names: string[]): number =>
  detail.spans.filter(({ stage }) => names.includes(stage)).reduce((all, { start, end }) => all + end - start, 0);

export function RequestStep({ detail }: StepProps) {
  const own = ownOf(detail);
  return (
    <>
      <p>
        {own ? "The JSON that this page sent." : "The sampling parameters that differ from the defaults; the body itself is not kept."} Read and parsed in{" "}
        {duration(stageUs(detail, "intake"))}, validated in {duration(stageUs(detail, "validate"))}.
      </p>
      <pre class="code" tabIndex={0} dir="auto">
        {JSON.stringify(own?.body ?? { kind: detail.kind, model: detail.asked, stream: detail.stream, ...detail.params }, null, 2)}
      </pre>
    </>
  );
}

export function TemplateStep({ detail, texts }: StepProps) {
  return (
    <>
      <p>
        {detail.spans.some(({ stage }) => stage === "template")
          ? `The chat template turned the messages into one text, in ${duration(stageUs(detail, "template"))}. The special tokens mark who speaks.`
          : "A plain prompt: no chat template."}
      </p>
      {texts ? (
        <pre class="code" tabIndex={0} dir="auto">
          {texts.text}
        </pre>
      ) : (
        <NoTexts />
      )}
    </>
  );
}

export function TokenStep({ detail, texts }: StepProps) {
  return (
    <>
      <p>
        {count(detail.prompt_tokens)} tokens, in {duration(stageUs(detail, "tokenize"))}. Each has an id; the model sees nothing else of the text.
      </p>
      {texts ? <Tokens ids={texts.ids} strings={texts.strings} /> : <NoTexts />}
    </>
  );
}

export function Tokens({ ids, strings }: { ids: number[]; strings: string[] }) {
  return (
    <p class="follow-tokens mono" dir="auto">
      {strings.slice(0, SHOWN_TOKENS).map((text, place) => (
        <span key={place} data-hue={place % HUES} title={`token ${place}: id ${ids[place]}`}>
          {visible(text)}
          <small>{ids[place]}</small>
        </span>
      ))}
      {strings.length > SHOWN_TOKENS && <em>and {count(strings.length - SHOWN_TOKENS)} more</em>}
    </p>
  );
}

export function QueueStep({ detail }: StepProps) {
  const [sequence] = detail.sequences;
  const reasons = Object.entries(sequence?.wait?.by_us ?? {}).filter(([, us]) => us > 0);
  if (!sequence) return <p>It was refused before it was queued.</p>;
  return (
    <>
      <dl class="stats">
        <Stat name="Waited" value={duration(detail.queue_us)} />
        <Stat name="Ahead of it" value={count(sequence.wait?.ahead)} />
        <Stat name="Preemptions" value={count(detail.preemptions)} />
      </dl>
      {reasons.map(([reason, us]) => (
        <p key={reason}>
          <b>{duration(us)}</b>: {WAITS[reason] ?? reason}
        </p>
      ))}
    </>
  );
}

export function StreamStep({ detail }: StepProps) {
  const own = ownOf(detail);
  const { totals } = detail;
  return (
    <>
      <dl class="stats">
        <Stat name="Writes" value={count(totals["writes"])} />
        <Stat name="Bytes" value={bytes(totals["write_bytes"])} />
        <Stat name="Detokenize" value={duration(totals["detokenize_us"])} detail="in all" />
        <Stat name="Writing" value={duration(totals["write_us"])} detail="waits for the socket" />
      </dl>
      {own ? (
        <>
          <p>The bytes as they reached this page; times count from the click.</p>
          <Table label="Bytes of the stream" class="follow-bytes">
            <thead>
              <tr>
                <th class="num">ms</th>
                <th>bytes</th>
              </tr>
            </thead>
            <tbody>
              {own.pieces.slice(0, SHOWN_PIECES).map(({ ms, text }, place) => (
                <tr key={place}>
                  <td class="num">{ms.toFixed(1)}</td>
                  <td>
                    <code>{text.trimEnd()}</code>
                  </td>
                </tr>
              ))}
            </tbody>
          </Table>
        </>
      ) : (
        <p class="muted">The bytes themselves are known only of a request that this page sent.</p>
      )}
    </>
  );
}

export function EndStep({ detail, texts }: StepProps) {
  return (
    <>
      <p>{FINISHES[detail.finish ?? ""] ?? detail.finish}</p>
      <dl class="stats">
        <Stat name="Total" value={duration(detail.e2e_us)} />
        <Stat name="TTFT" value={duration(detail.ttft_us)} />
        <Stat name="tok/s" value={detail.tokens_per_s?.toFixed(1) ?? "–"} />
        <Stat name="Input" value={count(detail.prompt_tokens)} detail={`${count(detail.cached_tokens)} cached`} />
        <Stat name="Output" value={count(detail.output_tokens)} />
        {detail.cost_usd !== null && <Stat name="Cost" value={usd(detail.cost_usd)} />}
      </dl>
      {texts && <Tokens ids={texts.output} strings={texts.outputStrings} />}
    </>
  );
}
