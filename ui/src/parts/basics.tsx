/** Basic components of all pages. */
import type { ButtonHTMLAttributes, ComponentChildren, CSSProperties } from "preact";
import { useId, useState } from "preact/hooks";
import { copyText } from "../lib/clipboard";
import { Icon, type IconName } from "./icons";
import { Terms } from "./terms";

type Children = { children?: ComponentChildren };

export function Button({
  icon,
  children,
  label,
  kind = "plain",
  ...rest
}: { icon?: IconName; label?: string; kind?: "plain" | "primary" | "quiet" | "danger" } & Children &
  Omit<ButtonHTMLAttributes<HTMLButtonElement>, "icon" | "label">) {
  return (
    <button type="button" aria-label={label} title={label} {...rest} class={`button ${kind} ${children ? "" : "square"}`}>
      {icon && <Icon name={icon} size={16} />}
      {children}
    </button>
  );
}

export function Segmented<T extends string>({
  label,
  value,
  options,
  onChange,
}: {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
}) {
  return (
    <div class="segmented" role="group" aria-label={label}>
      {options.map(([key, text]) => (
        <button type="button" key={key} aria-pressed={key === value} onClick={() => onChange(key)}>
          {text}
        </button>
      ))}
    </div>
  );
}

export function Card({
  title,
  aside,
  note,
  children,
  class: name = "",
}: { title?: ComponentChildren; aside?: ComponentChildren; note?: ComponentChildren; class?: string } & Children) {
  return (
    <section class={`card ${name}`}>
      {(title || aside) && (
        <header>
          {title && <h2>{title}</h2>}
          {aside && <div class="aside">{aside}</div>}
        </header>
      )}
      {note && <p class="note">{note}</p>}
      {children}
    </section>
  );
}

/** A table that scrolls horizontally where the page is too narrow. */
export function Table({ label, class: name = "", style, children }: { label: string; class?: string; style?: CSSProperties } & Children) {
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label={label}>
      <table class={`table ${name}`} style={style}>
        {children}
      </table>
    </div>
  );
}

/** A labelled figure. */
export function Stat({ name, value, detail, tone }: { name: string; value: ComponentChildren; detail?: ComponentChildren; tone?: string }) {
  return (
    <div class="stat" data-tone={tone}>
      <dt>{name}</dt>
      <dd>{value}</dd>
      {detail && <dd class="detail">{detail}</dd>}
    </div>
  );
}

export function Badge({ tone = "plain", children, title }: { tone?: string; title?: string } & Children) {
  return (
    <span class="badge" data-tone={tone} title={title}>
      {children}
    </span>
  );
}

/** Marks a figure as computed, not measured. */
export function Computed({ what = "Computed" }: { what?: string }) {
  return (
    <Badge tone="computed" title="Computed from formulas or measurements, not measured itself.">
      {what}
    </Badge>
  );
}

export function Empty({ icon, title, children }: { icon: IconName; title: string } & Children) {
  return (
    <div class="empty">
      <Icon name={icon} size={28} />
      <h2>{title}</h2>
      {children && <p>{children}</p>}
    </div>
  );
}

export function Problem({ message, onRetry }: { message: string; onRetry?: () => void }) {
  return (
    <div class="problem" role="alert">
      <span>{message}</span>
      {onRetry && <Button onClick={onRetry}>Retry</Button>}
    </div>
  );
}

export function Legend({ entries }: { entries: readonly (readonly [string, string])[] }) {
  return (
    <ul class="legend" aria-label="Legend">
      {entries.map(([colour, text]) => (
        <li key={text}>
          <i data-colour={colour} />
          {text}
        </li>
      ))}
    </ul>
  );
}

export function PageHeader({
  title,
  lead,
  terms,
  children,
}: { title: string; lead?: ComponentChildren; terms: Parameters<typeof Terms>[0]["of"] } & Children) {
  return (
    <header class="page-header">
      <div>
        <h1>{title}</h1>
        {lead && <p>{lead}</p>}
        <Terms of={terms} />
      </div>
      {children && <div class="actions">{children}</div>}
    </header>
  );
}

/** A text field with its label. */
export function Field({
  label,
  hint,
  children,
}: { label: string; hint?: ComponentChildren; children: (id: string) => ComponentChildren }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children(id)}
      {hint && <small>{hint}</small>}
    </div>
  );
}

/** `wide`: a button with its label, for the main action of a dialog. */
export function CopyButton({ text, label, wide = false }: { text: () => string; label: string; wide?: boolean }) {
  const [outcome, setOutcome] = useState<"" | "Copied" | "Copying failed">("");
  const copy = async (): Promise<void> => {
    await copyText(text()).then(
      () => setOutcome("Copied"),
      () => setOutcome("Copying failed"),
    );
    setTimeout(() => setOutcome(""), 1500);
  };
  const [icon, shown] = [outcome === "Copied" ? ("check" as const) : ("copy" as const), outcome || label];
  if (!wide) return <Button icon={icon} kind="quiet" label={shown} onClick={() => void copy()} />;
  return (
    <Button icon={icon} kind="primary" autofocus onClick={() => void copy()}>
      {shown}
    </Button>
  );
}
