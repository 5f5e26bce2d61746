/** A labelled slider with its value. `log`: equal distances are equal ratios. */
import { useId } from "preact/hooks";
import { count } from "../../lib/format";

const STEPS = 200;

export function Slider({
  label,
  min,
  max,
  value,
  log = false,
  onInput,
}: {
  label: string;
  min: number;
  max: number;
  value: number;
  log?: boolean;
  onInput: (value: number) => void;
}) {
  const id = useId();
  const least = log ? Math.max(1, min) : min;
  const place = log ? (Math.log(Math.max(least, value) / least) / Math.log(Math.max(2, max / least))) * STEPS : value;
  const at = (moved: number): number => (log ? Math.round(Math.min(max, least * Math.max(2, max / least) ** (moved / STEPS))) : moved);
  return (
    <div class="parameter" data-set="true">
      <div class="head">
        <label for={id}>{label}</label>
        <output for={id}>{count(value)}</output>
      </div>
      <input
        id={id}
        type="range"
        min={log ? 0 : min}
        max={log ? STEPS : max}
        step={1}
        value={place}
        aria-valuetext={count(value)}
        onInput={(event) => onInput(at(Number(event.currentTarget.value)))}
      />
    </div>
  );
}
