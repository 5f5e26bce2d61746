/** The message field, with text files attached as documents. */
import { useEffect, useRef, useState } from "preact/hooks";
import { readText } from "../../lib/files";
import { bytes } from "../../lib/format";
import { errorMessage } from "../../lib/http";
import { Button } from "../../parts/basics";
import { sendMessage, stop } from "./chat";
import { busy, lanes, set } from "./lanes";
import type { Attachment } from "./message";

const MAX_FILES = 20;
const MAX_FILE_BYTES = 1 << 20;
const MAX_BYTES = 4 << 20; // of all of them

export function Composer({ input }: { input: { current: HTMLTextAreaElement | null } }) {
  const [text, setText] = useState("");
  const [files, setFiles] = useState<Attachment[]>([]);
  const [problem, setProblem] = useState("");
  const picker = useRef<HTMLInputElement>(null);
  const send = (): void => {
    if (!text.trim() || busy.value) return;
    sendMessage(text, files);
    setText("");
    setFiles([]);
    setProblem("");
  };
  const attach = async (chosen: Iterable<File>): Promise<void> => {
    const found = [...files];
    setProblem("");
    for (const file of chosen) {
      try {
        const size = found.reduce((sum, { text: other }) => sum + other.length, 0) + file.size;
        if (found.length >= MAX_FILES || size > MAX_BYTES) throw new Error(`At most ${MAX_FILES} files, ${bytes(MAX_BYTES)} together.`);
        found.push({ name: file.name, text: await readText(file, MAX_FILE_BYTES) });
      } catch (error) {
        setProblem(errorMessage(error));
      }
    }
    setFiles(found);
  };
  useEffect(() => {
    const field = input.current;
    if (!field) return;
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight + 2, 240)}px`;
  }, [text]);
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        void attach(event.dataTransfer?.files ?? []);
      }}
    >
      {problem && <p role="alert">{problem}</p>}
      {files.length > 0 && (
        <ul class="attachments" aria-label="Documents to attach">
          {files.map(({ name, text: content }, place) => (
            <li key={place}>
              {name} <small class="muted">{bytes(content.length)}</small>
              <Button icon="close" kind="quiet" label={`Remove ${name}`} onClick={() => setFiles(files.filter((_, other) => other !== place))} />
            </li>
          ))}
        </ul>
      )}
      <Modes />
      <div class="composer-field">
        <Button icon="attach" kind="quiet" label="Attach text files as documents" onClick={() => picker.current?.click()} />
        <input
          ref={picker}
          hidden
          multiple
          type="file"
          aria-label="Documents"
          onChange={({ currentTarget }) => {
            void attach([...(currentTarget.files ?? [])]);
            currentTarget.value = "";
          }}
        />
        <textarea
          ref={input}
          rows={1}
          dir="auto"
          aria-label="Your message"
          placeholder="Message"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              send();
            }
          }}
        />
        {busy.value ? (
          <Button icon="stop" kind="primary" label="Stop" onClick={stop} />
        ) : (
          <Button icon="send" kind="primary" label="Send" type="submit" disabled={!text.trim()} />
        )}
      </div>
    </form>
  );
}

/** What holds for the next answer and is easily forgotten. */
function Modes() {
  const bound = lanes.value.filter(({ settings }) => settings.value.format !== "text");
  if (!bound.length) return null;
  return (
    <ul class="attachments" aria-label="In force">
      {bound.map((lane) => (
        <li key={lane.name}>
          {lanes.value.length > 1 && `${lane.name}: `}
          {lane.settings.value.format === "schema" ? "answers match the JSON schema" : "answers are JSON"}
          <Button icon="close" kind="quiet" label="Answer as text again" onClick={() => set({ format: "text" }, lane)} />
        </li>
      ))}
    </ul>
  );
}
