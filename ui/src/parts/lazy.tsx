/** Code splitting: a page is loaded when first shown. */
import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Problem } from "./basics";

export type Load = () => Promise<ComponentType>;

const loaded = new Map<Load, ComponentType>();

/** Loads a page ahead, so that it is available while the server is down. */
export function preload(load: Load): void {
  if (!loaded.has(load)) load().then((body) => loaded.set(load, body), () => undefined);
}

export function Lazy({ load }: { load: Load }) {
  const [state, setState] = useState<{ body?: ComponentType; failed?: boolean }>({ body: loaded.get(load) });
  useEffect(() => {
    if (state.body) return;
    load().then(
      (body) => (loaded.set(load, body), setState({ body })),
      () => setState({ failed: true }),
    );
  }, []);
  if (state.failed) return <Problem message="Failed to load this page." onRetry={() => location.reload()} />;
  return state.body ? <state.body /> : null;
}
