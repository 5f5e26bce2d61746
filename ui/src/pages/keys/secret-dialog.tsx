/** Shows a new key, once. */
import { Button, CopyButton } from "../../parts/basics";
import { Dialog } from "../../parts/dialog";

export function SecretDialog({ secret, title, note, onClose }: { secret: string; title: string; note: string; onClose: () => void }) {
  return (
    <Dialog title={title} onClose={onClose} stay>
      <div class="stack">
        <p>
          <b>Copy it now: it is not shown again.</b> {note}
        </p>
        <code class="secret">{secret}</code>
        <div class="row end">
          <Button onClick={onClose}>Done</Button>
          <CopyButton text={() => secret} label="Copy key" wide />
        </div>
      </div>
    </Dialog>
  );
}
