/** The diagram: a box per stage, pipes between them, and what moves through the pipes. */
import { useEffect, useRef } from "preact/hooks";
import { count, duration, percent, short } from "../../lib/format";
import { useCanvas } from "../../parts/canvas";
import { type PipelineAnswer, type Rates, type StageFigures } from "./data";
import { Flow, type Point, drawPipes, loop, pipe, way } from "./flow";
import { LANES, STAGES, type Lane, type StageText } from "./stages";

const WAY_IN = STAGES.filter(({ lane }) => lane === "in").map(({ name }) => name);
const STILL = matchMedia("(prefers-reduced-motion: reduce)");
const LONGEST_FRAME_S = 0.1;

interface Props {
  answer: PipelineAnswer | null;
  rates: Rates | null;
  selected: string;
  onSelect: (name: string) => void;
}

export function Diagram({ answer, rates, selected, onSelect }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const flow = useRef(new Flow());
  const pipes = useRef<Point[][]>([]);
  const { ref, redraw } = useCanvas((context) => {
    drawPipes(context, pipes.current);
    flow.current.draw(context);
  });
  flow.current.rates = STILL.matches || !rates ? {} : dotsOf(rates);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const sized = new ResizeObserver(() => {
      lay(element, flow.current, pipes);
      redraw();
    });
    sized.observe(element);
    let [frame, last] = [0, performance.now()];
    const turn = (now: number): void => {
      frame = requestAnimationFrame(turn);
      const spent = Math.min((now - last) / 1000, LONGEST_FRAME_S);
      last = now;
      if (!flow.current.moving) return;
      flow.current.advance(spent);
      redraw();
    };
    frame = requestAnimationFrame(turn);
    return () => {
      cancelAnimationFrame(frame);
      sized.disconnect();
    };
  }, []);
  const figures = new Map(answer?.stages.map((stage) => [stage.name, stage]));
  const path = Object.values(answer?.path_us ?? {}).reduce((all, us) => all + us, 0);
  return (
    <div class="pipeline-diagram" ref={box}>
      <canvas ref={ref} aria-hidden="true" />
      {(Object.keys(LANES) as Lane[]).map((lane) => (
        <section key={lane} class="pipeline-lane" data-lane={lane} aria-label={LANES[lane]}>
          <h2>{LANES[lane]}</h2>
          <div class="pipeline-stages">
            {STAGES.filter((stage) => stage.lane === lane).map((stage) => (
              <StageBox
                key={stage.name}
                stage={stage}
                figures={figures.get(stage.name)}
                off={answer?.active[stage.name] === false}
                share={path ? (answer?.path_us[stage.name] ?? 0) / path : 0}
                rates={rates}
                selected={stage.name === selected}
                onSelect={() => onSelect(stage.name)}
              />
            ))}
          </div>
        </section>
      ))}
    </div>
  );
}

interface BoxProps {
  stage: StageText;
  figures: StageFigures | undefined;
  off: boolean;
  share: number;
  rates: Rates | null;
  selected: boolean;
  onSelect: () => void;
}

function StageBox({ stage, figures, off, share, rates, selected, onSelect }: BoxProps) {
  return (
    <button
      type="button"
      class="stage-box"
      data-stage={stage.name}
      data-off={off}
      data-busy={(figures?.now ?? 0) > 0}
      aria-pressed={selected}
      onClick={onSelect}
    >
      <span class="stage-title">
        <i data-colour={stage.colour} />
        {stage.title}
        {!!figures?.now && <em>{count(figures.now)}</em>}
      </span>
      <span class="stage-figure">{off ? "off" : headline(stage.name, figures, rates)}</span>
      <span class="stage-detail">{off ? "" : subline(stage.name, figures, rates)}</span>
      <span class="stage-share" aria-hidden="true">
        <i data-colour={stage.colour} style={{ width: `${100 * share}%` }} />
      </span>
    </button>
  );
}

/** The figure of a box: the median time, or tokens per second where tokens pass. */
export function headline(name: string, figures: StageFigures | undefined, rates: Rates | null): string {
  if (name === "sample") return rates ? `${short(rates.output_tokens)} tok/s` : "–";
  if (name === "speculate") return rates?.drafted ? percent(rates.accepted / rates.drafted, 0) : "–";
  return duration(figures?.us_p50);
}

export function subline(name: string, figures: StageFigures | undefined, rates: Rates | null): string {
  if (name === "sample") return "drawn";
  if (name === "speculate") return rates?.drafted ? "of drafts accepted" : "no drafts now";
  if (name === "prefill") return rates ? `${short(rates.prefill_tokens)} tok/s` : "";
  if (name === "decode") return rates ? `${short(rates.decode_tokens)} tok/s` : "";
  if (name === "stream") return rates ? `${short(rates.writes)} writes/s` : "";
  if (figures?.refused) return `${count(figures.refused)} refused`;
  return figures?.count ? `${count(figures.count)} × in 60 s` : "none in 60 s";
}

/** Dots per second by way: a dot is a request on the way in, and a token behind the sampler. */
function dotsOf(rates: Rates): Record<string, number> {
  return {
    in: rates.requests,
    prompt: Math.min(rates.prefill_tokens / 8, 6),
    tokens: rates.output_tokens,
    loop: rates.steps,
    end: rates.requests,
  };
}

function lay(element: HTMLElement, flow: Flow, pipes: { current: Point[][] }): void {
  const origin = element.getBoundingClientRect();
  const boxes = new Map(
    [...element.querySelectorAll<HTMLElement>("[data-stage]")].map((one) => {
      const { left, top, width, height } = one.getBoundingClientRect();
      return [one.dataset["stage"]!, { left: left - origin.left, top: top - origin.top, width, height }];
    }),
  );
  const between = (...names: string[]): Point[] =>
    names.slice(1).flatMap((name, place) => pipe(boxes.get(names[place]!)!, boxes.get(name)!).slice(place ? 1 : 0));
  const back = loop(boxes.get("speculate")!, boxes.get("decode")!);
  const way_in = between(...WAY_IN, "queue");
  pipes.current = [
    way_in,
    between("queue", "prefill", "decode", "sample", "speculate"),
    back,
    between("sample", "detokenize"),
    between("detokenize", "stream", "ledger"),
  ];
  flow.ways = {
    in: way(way_in, "c-intake", 4),
    prompt: way(between("queue", "prefill", "decode"), "c-prefill", 3),
    loop: way([...between("decode", "sample", "speculate"), ...back.slice(1)], "c-decode", 2.5),
    tokens: way(between("sample", "detokenize", "stream"), "c-decode", 3),
    end: way(between("stream", "ledger"), "c-output", 4),
  };
  flow.clear();
}
