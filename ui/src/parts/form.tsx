/** Form fields of dialogs. */
import type { ComponentChildren } from "preact";
import { Field } from "./basics";

export interface TextFieldProps {
  label: string;
  hint?: ComponentChildren;
  value: string;
  onInput: (value: string) => void;
  type?: "text" | "number" | "date";
  min?: number;
  placeholder?: string;
  required?: boolean;
  wrong?: boolean;
  autofocus?: boolean;
}

/** One line of text or a number; the value is a text, so that empty stays empty. */
export function TextField({ label, hint, value, onInput, type = "text", min = 0, placeholder, required, wrong = false, autofocus }: TextFieldProps) {
  return (
    <Field label={label} hint={hint}>
      {(id) => (
        <input
          id={id}
          type={type as "text"}
          min={type === "number" ? min : undefined}
          step={type === "number" ? "any" : undefined}
          required={required}
          autofocus={autofocus}
          spellcheck={false}
          autocomplete="off"
          placeholder={placeholder}
          aria-invalid={wrong}
          value={value}
          onInput={(event) => onInput(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

export function Check({ label, checked, onChange }: { label: ComponentChildren; checked: boolean; onChange: (on: boolean) => void }) {
  return (
    <label class="check">
      <input type="checkbox" checked={checked} onChange={(event) => onChange(event.currentTarget.checked)} />
      {label}
    </label>
  );
}

/** Checkboxes for the members of a set, in its order. `plain`: names are shown as they are. */
export function Checks({ label, names, chosen, onChange, plain = false }: { label: string; names: readonly string[]; chosen: readonly string[]; onChange: (chosen: string[]) => void; plain?: boolean }) {
  return (
    <fieldset class="checks">
      <legend>{label}</legend>
      {names.map((name) => (
        <Check
          key={name}
          label={plain ? name : name.replaceAll("_", " ")}
          checked={chosen.includes(name)}
          onChange={(on) => onChange(names.filter((one) => (one === name ? on : chosen.includes(one))))}
        />
      ))}
    </fieldset>
  );
}
