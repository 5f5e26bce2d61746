/** Copies a text. Browsers offer their clipboard to pages of HTTPS and localhost only: elsewhere a selection is copied. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "sr-only";
  const before = document.activeElement;
  (document.querySelector("dialog[open]") ?? document.body).append(field); // what is outside of a modal dialog takes no focus
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (before instanceof HTMLElement) before.focus();
  if (!copied) throw new Error("The browser does not allow copying.");
}
