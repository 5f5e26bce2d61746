/** The words of a page, explained: closed until somebody asks. */
import { LESSONS } from "../lib/lessons";

export function Lesson({ of }: { of: keyof typeof LESSONS }) {
  return (
    <details class="lesson">
      <summary>What the words mean</summary>
      <dl>
        {LESSONS[of].map(([name, meaning]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}
