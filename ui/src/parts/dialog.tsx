/** Modal dialogs on the browser's own <dialog>: focus trap and backdrop come with it. */
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { errorMessage } from "../lib/http";
import { useEscape } from "../lib/shortcuts";
import { Button, Problem } from "./basics";

export function Dialog({
  title,
  onClose,
  children,
  wide = false,
  stay = false,
}: {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  wide?: boolean;
  stay?: boolean; // a click beside it does not close it
}) {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    box.current?.showModal();
  }, []);
  useEscape(true, () => {
    const open = box.current?.open ?? false; // once closed, it stays until its event
    box.current?.close();
    return open;
  });
  return (
    <dialog
      ref={box}
      class={wide ? "wide" : ""}
      aria-labelledby={id}
      onClose={onClose}
      onClick={(event) => !stay && event.target === box.current && box.current?.close()}
    >
      <div class="dialog-body">
        <header>
          <h2 id={id}>{title}</h2>
          <Button icon="close" kind="quiet" label="Close" onClick={() => box.current?.close()} />
        </header>
        {children}
      </div>
    </dialog>
  );
}

/** Asks before something that cannot be undone. `run` may fail: the dialog says why and stays. */
export function Confirm({
  title,
  action,
  run,
  onClose,
  children,
}: {
  title: string;
  action: string;
  run: () => Promise<void>;
  onClose: () => void;
  children: ComponentChildren;
}) {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const confirm = (): void => {
    setBusy(true);
    run().then(onClose, (error: unknown) => {
      setProblem(errorMessage(error));
      setBusy(false);
    });
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <div class="stack">
        <div>{children}</div>
        {problem && <Problem message={problem} />}
        <div class="row end">
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="danger" disabled={busy} onClick={confirm}>
            {action}
          </Button>
        </div>
      </div>
    </Dialog>
  );
}
