/** The terms of a page and their explanations, collapsed. */
import { TERMS } from "../lib/terms";

export function Terms({ of }: { of: keyof typeof TERMS }) {
  return (
    <details class="terms">
      <summary>Terms</summary>
      <dl>
        {TERMS[of].map(([name, meaning]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}
