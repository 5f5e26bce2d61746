/** Modal dialogs on the browser's own <dialog>: focus trap and backdrop come with it. */
import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { useEscape } from "../lib/shortcuts";
import { Button } from "./basics";

export function Dialog({
  title,
  onClose,
  children,
  wide = false,
}: {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  wide?: boolean;
}) {
  const box = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    box.current?.showModal();
  }, []);
  useEscape(true, () => box.current?.close());
  return (
    <dialog
      ref={box}
      class={wide ? "wide" : ""}
      aria-labelledby={id}
      onClose={onClose}
      onClick={(event) => event.target === box.current && box.current?.close()}
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
