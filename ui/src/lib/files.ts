/** Files from and to the user's disk. */

export function saveFile(content: Blob | string, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(typeof content === "string" ? new Blob([content]) : content);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Its text. Throws an Error if it is too large or no text. */
export async function readText(file: File, maxBytes: number): Promise<string> {
  if (file.size > maxBytes) throw new Error(`${file.name} is larger than ${Math.round(maxBytes / 1024)} KiB.`);
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is no UTF-8 text.`);
  }
  if (text.includes("\0")) throw new Error(`${file.name} is no text.`);
  return text;
}
