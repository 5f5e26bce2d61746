/** A response token by token, coloured by probability, with alternatives. */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { percent, visible } from "../../lib/format";
import { useEscape } from "../../lib/shortcuts";
import { Icon } from "../../parts/icons";
import { branch } from "./chat";
import type { Lane } from "./lanes";
import type { Alternative, Message, Token } from "./message";
import { acceptedTokens } from "./steps";

const CHUNK = 128; // tokens per memoized span
const LEVELS = [0.1, 0.3, 0.5, 0.7, 0.9];

export const level = (logprob: number): number => LEVELS.filter((limit) => Math.exp(logprob) >= limit).length;

interface Shown {
  index: number;
  box: DOMRect;
}

export function TokenText({ lane, message }: { lane: Lane; message: Message }) {
  const [shown, setShown] = useState<Shown | null>(null);
  const root = useRef<HTMLDivElement>(null);
  const popover = useRef<HTMLDivElement>(null);
  const { tokens, steps } = message;
  const given = tokens.findIndex((token) => !token.given);
  const drafted = steps.length ? acceptedTokens(steps) : [];
  const isDraft = (index: number): boolean => drafted[index - Math.max(0, given)] ?? false;
  const at = (index: number): void => {
    const element = root.current?.querySelector(`[data-i="${index}"]`);
    if (element) setShown({ index, box: element.getBoundingClientRect() });
  };
  const pointed = (event: Event): void => {
    const index = (event.target as Element).closest?.("[data-i]")?.getAttribute("data-i");
    if (index != null) at(Number(index));
  };
  useEscape(shown !== null, () => setShown(null));
  useEffect(() => {
    if (!shown) return;
    const away = (event: Event): void => {
      const target = event.target as Node;
      if (!popover.current?.contains(target) && !root.current?.contains(target)) setShown(null);
    };
    const hide = (): void => setShown(null);
    document.addEventListener("pointerover", away);
    document.addEventListener("scroll", hide, true);
    return () => {
      document.removeEventListener("pointerover", away);
      document.removeEventListener("scroll", hide, true);
    };
  }, [shown !== null]);
  const chunks = Math.ceil(tokens.length / CHUNK);
  return (
    <div
      class="token-text"
      ref={root}
      tabIndex={0}
      role="group"
      aria-label="Tokens of the response. Left and Right move between them, Escape leaves."
      onPointerOver={pointed}
      onClick={pointed}
      onKeyDown={(event) => {
        const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (move) {
          event.preventDefault();
          at(Math.max(0, Math.min(tokens.length - 1, (shown?.index ?? (move > 0 ? -1 : tokens.length)) + move)));
        }
      }}
    >
      {Array.from({ length: chunks }, (_, chunk) => (
        <Chunk
          key={chunk}
          tokens={tokens}
          isDraft={isDraft}
          from={chunk * CHUNK}
          to={Math.min(tokens.length, (chunk + 1) * CHUNK)}
          shown={shown && Math.floor(shown.index / CHUNK) === chunk ? shown.index : -1}
        />
      ))}
      {shown && tokens[shown.index] && (
        <Popover
          ref_={popover}
          shown={shown}
          token={tokens[shown.index]!}
          draft={steps.length ? isDraft(shown.index) : null}
          onChoose={(other) => {
            branch(lane, message, shown.index, other);
            setShown(null);
          }}
        />
      )}
    </div>
  );
}

interface ChunkProps {
  tokens: Token[];
  isDraft: (index: number) => boolean;
  from: number;
  to: number;
  shown: number;
}

function Chunk({ tokens, isDraft, from, to, shown }: ChunkProps) {
  return useMemo(
    () => (
      <span class="chunk">
        {tokens.slice(from, to).map((token, place) => (
          <span
            key={place}
            data-i={from + place}
            class={`tok p${level(token.logprob)} ${token.given ? "given" : ""} ${isDraft(from + place) ? "drafted" : ""} ${from + place === shown ? "on" : ""}`}
          >
            {token.token.includes("\n") ? token.token.replaceAll("\n", "⏎\n") : token.token}
          </span>
        ))}
      </span>
    ),
    [tokens, from, to, shown],
  );
}

function Popover({
  shown,
  token,
  draft,
  onChoose,
  ref_,
}: {
  shown: Shown;
  token: Token;
  draft: boolean | null; // null: the stream tells no drafts
  onChoose: (other: Alternative) => void;
  ref_: { current: HTMLDivElement | null };
}) {
  const others = token.top_logprobs.some((other) => other.token === token.token) || !token.top_logprobs.length
    ? token.top_logprobs
    : [...token.top_logprobs, token];
  useLayoutEffect(() => {
    const box = ref_.current;
    if (!box) return;
    const { innerWidth: wide, innerHeight: high } = window;
    const left = Math.max(8, Math.min(shown.box.left, wide - box.offsetWidth - 8));
    const below = shown.box.bottom + 2;
    const top = below + box.offsetHeight < high - 8 ? below : Math.max(8, shown.box.top - box.offsetHeight - 2);
    box.style.left = `${left}px`;
    box.style.top = `${top}px`;
  }, [shown]);
  return (
    <div class="popover token-popover" ref={ref_}>
      <p class="head">
        <b class="mono">{visible(token.token)}</b>
        <span>{token.given ? "forced" : `token ${shown.index + 1}`}{!token.given && draft !== null && (draft ? " · accepted draft" : " · own draw")}</span>
      </p>
      <ul>
        {others.map((other) => (
          <li key={other.token + other.logprob}>
            <button
              type="button"
              disabled={other.token === token.token}
              title={other.token === token.token ? "Sampled" : "Branch here with this token"}
              onClick={(event) => {
                event.stopPropagation();
                onChoose(other);
              }}
            >
              <span class="mono ellipsis">{visible(other.token)}</span>
              <meter min={0} max={1} value={Math.exp(other.logprob)} aria-label={`Probability of ${other.token}`} />
              <span class="num">{percent(Math.exp(other.logprob))}</span>
              {other.token === token.token ? <Icon name="check" size={13} /> : <Icon name="branch" size={13} />}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
