/** Hash routes: #/requests/abc?state=running is page "requests", rest ["abc"], query {state: "running"}. */
import { signal } from "@preact/signals";

export interface Route {
  page: string;
  rest: string[];
  query: URLSearchParams;
}

function read(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [page = "", ...rest] = path.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { page: page || "pipeline", rest, query: new URLSearchParams(query) };
}

export const route = signal<Route>(read());
addEventListener("hashchange", () => (route.value = read()));

/** With a query: `goTo("requests", { from: "1" })`. */
export function goTo(page: string, query: Record<string, string>): void {
  location.hash = `#/${encodeURIComponent(page)}?${new URLSearchParams(query)}`;
  route.value = read();
}

export function go(page: string, ...rest: string[]): void {
  location.hash = `#/${[page, ...rest].map(encodeURIComponent).join("/")}`;
  route.value = read(); // the hashchange event may come after the next key
}
