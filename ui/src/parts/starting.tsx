/** What a server does before its model is loaded. */
import type { StartStatus } from "../lib/api";
import { bytes } from "../lib/format";

export function Starting({ status }: { status: StartStatus }) {
  const { phase, done_bytes: done, total_bytes: total } = status;
  return (
    <div class="starting" role="status">
      <h1>Starting</h1>
      <p>{phase[0]!.toUpperCase() + phase.slice(1)} …</p>
      <progress aria-label={phase} max={total ?? 1} value={total === undefined ? undefined : done} />
      {done !== undefined && (
        <p class="note">
          {bytes(done)}
          {total !== undefined && ` of ${bytes(total)}`}
        </p>
      )}
    </div>
  );
}
