/** Inside the model: embeddings, layers, attention and logits of one short prompt, from the served weights. */
import { useEffect } from "preact/hooks";
import { count, duration, percent, visible } from "../../lib/format";
import { Button, Card, Field, Problem, Stat, Table } from "../../parts/basics";
import { Attention, HeadGrid, Stream } from "./inside-maps";
import { type ModelTrace, busy, head, layer, leave, position, problem, prompt, run, trace } from "./inside-state";

export function Inside() {
  useEffect(() => {
    void run();
    return leave;
  }, []);
  const found = trace.value;
  return (
    <div class="stack inside">
      <Card
        title="A prompt"
        note="At most 64 tokens. The server recomputes it with the weights it serves, on a thread beside the engine: running requests go on, and nothing of theirs is read."
      >
        <form
          class="inside-form"
          onSubmit={(event) => {
            event.preventDefault();
            position.value = null;
            void run();
          }}
        >
          <Field label="Prompt">
            {(id) => <input id={id} type="text" required maxLength={400} value={prompt.value} onInput={(event) => (prompt.value = event.currentTarget.value)} />}
          </Field>
          <Button kind="primary" type="submit" icon="play" disabled={busy.value}>
            {busy.value ? "Computing" : "Look inside"}
          </Button>
        </form>
        {problem.value && <Problem message={problem.value} />}
        {found && <Chosen found={found} />}
      </Card>
      {found && (
        <>
          <Stream found={found} />
          <Heads found={found} />
          <Lens found={found} />
        </>
      )}
    </div>
  );
}

/** The tokens; the chosen one is looked at in the cards below. */
function Chosen({ found }: { found: ModelTrace }) {
  return (
    <>
      <p class="follow-tokens mono" dir="auto">
        {found.tokens.map((token, place) => (
          <button
            type="button"
            key={place}
            aria-pressed={place === found.position}
            title={`token ${place}: id ${token.id}`}
            onClick={() => {
              position.value = place;
              void run();
            }}
          >
            {visible(token.text)}
          </button>
        ))}
      </p>
      <dl class="stats">
        <Stat name="Layers" value={count(found.num_layers)} />
        <Stat name="Heads per layer" value={count(found.num_heads)} detail={`${count(found.num_kv_heads)} of keys and values`} />
        <Stat name="Residual stream" value={count(found.hidden_size)} detail="numbers per token" />
        <Stat name="Took" value={duration(found.us)} />
      </dl>
    </>
  );
}

function Heads({ found }: { found: ModelTrace }) {
  const chosen = Math.min(head.value, found.num_heads - 1);
  const entropy = found.entropy_bits[found.layer] ?? [];
  const row = found.attention[chosen]?.[found.position] ?? [];
  const most = row.map((share, place) => ({ share, place })).sort((a, b) => b.share - a.share).slice(0, 3);
  return (
    <Card
      title="Attention"
      note="Each head mixes earlier tokens into the current one: softmax(q·k ÷ √d). Rows are the token that looks, columns the tokens it looks at; no token sees later ones."
    >
      <div class="inside-pick">
        <Field label={`Layer ${found.layer + 1} of ${found.num_layers}`}>
          {(id) => (
            <input
              id={id}
              type="range"
              min={0}
              max={found.num_layers - 1}
              value={layer.value}
              aria-valuetext={`Layer ${layer.value + 1}`}
              onInput={(event) => (layer.value = Number(event.currentTarget.value))}
              onChange={() => void run()}
            />
          )}
        </Field>
        <div class="inside-heads" role="group" aria-label="Head">
          {found.attention.map((_, place) => (
            <button type="button" key={place} aria-pressed={place === chosen} onClick={() => (head.value = place)}>
              {place + 1}
              <small>{entropy[place]?.toFixed(1)} bits</small>
            </button>
          ))}
        </div>
      </div>
      <div class="inside-stream">
        <Attention found={found} head={chosen} />
        <HeadGrid found={found} />
      </div>
      <p data-attends={found.position}>
        Head {chosen + 1}: <b class="mono">{visible(found.tokens[found.position]?.text ?? "")}</b> looks at{" "}
        {most.map(({ share, place }, at) => (
          <span key={place}>
            {at ? ", " : ""}
            <b class="mono">{visible(found.tokens[place]?.text ?? "")}</b> {percent(share)}
          </span>
        ))}
        . Many heads rest on the first token when they have nothing to do; bits say how widely a head looks.
      </p>
    </Card>
  );
}

/** What the model would say if it ended at each layer. */
function Lens({ found }: { found: ModelTrace }) {
  return (
    <Card
      title="Next token by layer"
      note="The logit lens: final norm and output head applied to the residual stream behind each layer. The last row is the model’s real prediction."
    >
      <Table label="Likeliest next tokens by layer" class="inside-lens">
        <thead>
          <tr>
            <th>Behind</th>
            <th colSpan={4}>Likeliest next tokens</th>
            <th class="num">Entropy</th>
          </tr>
        </thead>
        <tbody>
          {found.lens.map((one, place) => (
            <tr key={place} data-layer={place} data-last={place === found.num_layers}>
              <th scope="row" class="nowrap">
                {place ? `layer ${place}` : "embedding"}
              </th>
              {one.tokens.slice(0, 4).map((token, at) => (
                <td key={at} style={{ "--share": `${Math.round(55 * (one.probs[at] ?? 0))}%` }}>
                  <b class="mono">{visible(token.text)}</b> {percent(one.probs[at], 0)}
                </td>
              ))}
              <td class="num">{one.entropy_bits.toFixed(1)}</td>
            </tr>
          ))}
        </tbody>
      </Table>
    </Card>
  );
}
