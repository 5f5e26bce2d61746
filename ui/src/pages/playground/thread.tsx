/** The messages of a lane; before the first, what to ask. */
import { useEffect, useRef } from "preact/hooks";
import { facts } from "../../lib/live";
import { Button } from "../../parts/basics";
import { Icon } from "../../parts/icons";
import { Terms } from "../../parts/terms";
import { sendMessage } from "./chat";
import { comparing, type Lane, lanes, stopComparing } from "./lanes";
import { ModelPicker } from "./model-picker";
import { MessageView, type View } from "./message-view";
import { applySample, SAMPLES } from "./samples";

export function Thread({ lane, view }: { lane: Lane; view: View }) {
  const box = useRef<HTMLDivElement>(null);
  const pinned = useRef(true);
  const messages = lane.thread.value;
  const last = messages.at(-1);
  last?.version.value; // re-render while it streams
  useEffect(() => {
    if (pinned.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  return (
    <div
      class="thread"
      ref={box}
      tabIndex={0}
      role="log"
      aria-label={comparing.value ? `Conversation ${lane.name}` : "Conversation"}
      aria-live="off"
      onScroll={({ currentTarget: { scrollTop, scrollHeight, clientHeight } }) =>
        (pinned.current = scrollHeight - scrollTop - clientHeight < 40)
      }
    >
      {comparing.value && (
        <div class="lane-head">
          <b>{lane.name}</b> <ModelPicker lane={lane} />
          <Button kind="quiet" onClick={() => stopComparing(lane)}>
            Go on with {lane.name}
          </Button>
        </div>
      )}
      {messages.length === 0 ? (
        <Welcome lane={lane} />
      ) : (
        <div class="messages">
          {messages.map((message) => (
            <MessageView key={message.key} lane={lane} message={message} view={view} />
          ))}
          {view === "tokens" && <Scale drafts={messages.some(({ steps }) => steps.length > 0)} />}
        </div>
      )}
    </div>
  );
}

function Welcome({ lane }: { lane: Lane }) {
  const [first] = lanes.value;
  return (
    <div class="welcome">
      <Icon name="playground" size={30} />
      <h2>Chat with {lane.model.value || "the model"}</h2>
      <p>
        The Tokens view shows each token’s probability and alternatives.{" "}
        {facts.value && (facts.value.keep_texts ? "This server stores prompts and responses (--keep-texts)." : "The server stores no texts.")}
      </p>
      {lane === first && (
        <ul>
          {SAMPLES.map((sample) => (
            <li key={sample.label}>
              <Button title={sample.text} onClick={() => (applySample(sample, lanes.value), sendMessage(sample.text))}>
                <b>{sample.label}</b>
                <span class="muted">{sample.note}</span>
              </Button>
            </li>
          ))}
        </ul>
      )}
      <Terms of="playground" />
    </div>
  );
}

function Scale({ drafts }: { drafts: boolean }) {
  return (
    <p class="scale small">
      <span>Probability</span>
      {["< 10%", "< 30%", "< 50%", "< 70%", "< 90%", "≥ 90%"].map((label, place) => (
        <span key={label} class={`tok p${place}`}>
          {label}
        </span>
      ))}
      {drafts && (
        <>
          <span class="tok drafted">accepted draft</span>
          <span class="tok">own draw</span>
        </>
      )}
      <span class="muted">before temperature and filters; click a token to branch</span>
    </p>
  );
}
