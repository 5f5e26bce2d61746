/** Timeline model: columns by step number, and each sequence's steps. */
import type { SequenceInWindow, StepWindow } from "../../lib/api";

export const PREFILL = 0;
export const DECODE = 1;

export interface Lane {
  seq: number;
  about: SequenceInWindow | undefined;
  steps: number[];
  kinds: number[];
  tokens: number[];
  preempted: { step: number; why: string | null }[];
  /** First and last step, queue time included. */
  first: number;
  last: number;
}

export interface Column {
  number: number;
  start: number;
  us: number;
  planUs: number;
  forwardUs: number;
  settleUs: number;
  tokens: number;
  rows: number;
  running: number;
  waiting: number;
  blocked: string | null;
}

export class Timeline {
  columns: Column[] = [];
  stride = 1;
  readonly lanes = new Map<number, Lane>();
  private ordered: Lane[] | null = null;

  get first(): number {
    return this.columns[0]?.number ?? 0;
  }

  /** One past the last step. */
  get end(): number {
    const last = this.columns.at(-1);
    return last ? last.number + this.stride : 0;
  }

  static of(window: StepWindow): Timeline {
    const made = new Timeline();
    made.stride = window.stride;
    made.append(window);
    return made;
  }

  /** Appends the steps after the last column. */
  append({ steps, rows, marks, sequences }: StepWindow): void {
    const known = this.end;
    const from = steps.number.findIndex((number) => number >= known);
    if (from >= 0)
      for (let at = from; at < steps.number.length; at++)
        this.columns.push({
          number: steps.number[at]!,
          start: steps.start[at]!,
          us: steps.us[at]!,
          planUs: steps.plan_us[at] ?? 0,
          forwardUs: steps.forward_us[at] ?? 0,
          settleUs: steps.settle_us[at] ?? 0,
          tokens: steps.tokens[at]!,
          rows: steps.rows[at]!,
          running: steps.running[at]!,
          waiting: steps.waiting[at]!,
          blocked: steps.blocked[at] ?? null,
        });
    for (const [seq, about] of Object.entries(sequences)) this.lane(Number(seq)).about = about;
    for (let at = 0; at < rows.column.length; at++) {
      const number = steps.number[rows.column[at]!]!;
      if (number < known) continue;
      const lane = this.lane(rows.seq[at]!);
      lane.steps.push(number);
      lane.kinds.push(rows.kind[at]!);
      lane.tokens.push(rows.tokens[at]!);
    }
    for (const mark of marks)
      if (mark.kind === "preempted" && mark.step >= known) this.lane(mark.seq).preempted.push({ step: mark.step, why: mark.why });
    this.ordered = null;
  }

  /** Drops the oldest steps beyond `most`. */
  trim(most: number): void {
    if (this.columns.length <= most * 1.5) return;
    this.columns = this.columns.slice(-most);
    const first = this.first;
    for (const [seq, lane] of this.lanes) {
      const keep = lane.steps.findIndex((step) => step >= first);
      if (keep < 0) {
        if (lane.about?.finished_at != null) this.lanes.delete(seq);
        continue;
      }
      lane.steps.splice(0, keep);
      lane.kinds.splice(0, keep);
      lane.tokens.splice(0, keep);
    }
    this.ordered = null;
  }

  /** Lanes with a step in the window, oldest first. */
  visible(from: number, to: number): Lane[] {
    this.ordered ??= this.order();
    return this.ordered.filter((lane) => lane.first < to && lane.last >= from);
  }

  /** The step that ran at an instant. */
  stepAt(t: number): number {
    let low = 0;
    let high = this.columns.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.columns[middle]!.start <= t) low = middle + 1;
      else high = middle;
    }
    return this.columns[Math.max(0, low - 1)]?.number ?? 0;
  }

  /** When a step began; between two steps and beyond the known ones, in proportion. */
  timeOf(step: number): number {
    const { columns, stride } = this;
    const first = columns[0];
    const last = columns.at(-1);
    if (!first || !last) return 0;
    const mean = (last.start + last.us - first.start) / columns.length;
    if (step < first.number) return first.start - ((first.number - step) / stride) * mean;
    if (step >= this.end) return last.start + last.us + ((step - this.end) / stride) * mean;
    const column = this.columnAt(step) ?? last;
    const next = this.columnAt(column.number + stride)?.start ?? column.start + column.us;
    return column.start + ((step - column.number) / stride) * (next - column.start);
  }

  columnAt(step: number): Column | undefined {
    const at = Math.floor((step - this.first) / this.stride);
    const guess = this.columns[Math.max(0, Math.min(this.columns.length - 1, at))];
    if (guess && guess.number <= step && step < guess.number + this.stride) return guess;
    return this.columns.find((column) => column.number <= step && step < column.number + this.stride);
  }

  private lane(seq: number): Lane {
    let lane = this.lanes.get(seq);
    if (!lane) this.lanes.set(seq, (lane = { seq, about: undefined, steps: [], kinds: [], tokens: [], preempted: [], first: 0, last: 0 }));
    return lane;
  }

  private order(): Lane[] {
    const lanes = [...this.lanes.values()];
    for (const lane of lanes) {
      const own = lane.steps[0] ?? Number.POSITIVE_INFINITY;
      const queued = lane.about?.queued_at != null ? this.stepAt(lane.about.queued_at) : own;
      lane.first = Math.min(own, queued);
      const waits = lane.about?.finished_at == null; // still open
      lane.last = waits ? this.end : Math.max(lane.steps.at(-1) ?? 0, this.stepAt(lane.about!.finished_at!));
    }
    return lanes.sort((a, b) => (a.about?.queued_at ?? 0) - (b.about?.queued_at ?? 0) || a.seq - b.seq);
  }
}
