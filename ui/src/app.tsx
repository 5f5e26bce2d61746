/** The app shell: navigation, live server state, current page. */
import { useEffect, useRef } from "preact/hooks";
import { count, short } from "./lib/format";
import { allowKeyPrompt, keyPrompt } from "./lib/http";
import { alerts, choose, connection, facts, reconnect, several, sources, start, stats } from "./lib/live";
import { go, route } from "./lib/router";
import { helpShown, useShortcuts } from "./lib/shortcuts";
import { nextTheme, themeChoice } from "./lib/theme";
import { Button } from "./parts/basics";
import { Help } from "./parts/help";
import { Icon, type IconName } from "./parts/icons";
import { KeyDialog } from "./parts/key-dialog";
import { type Load, Lazy, preload } from "./parts/lazy";
import { Starting } from "./parts/starting";

const PAGES: { name: string; title: string; short: string; icon: IconName; load: Load }[] = [
  { name: "pipeline", title: "Pipeline", short: "Pipe", icon: "pipeline", load: () => import("./pages/pipeline/pipeline").then((page) => page.Pipeline) },
  { name: "playground", title: "Playground", short: "Play", icon: "playground", load: () => import("./pages/playground/playground").then((page) => page.Playground) },
  { name: "requests", title: "Requests", short: "Requests", icon: "requests", load: () => import("./pages/requests/requests").then((page) => page.Requests) },
  { name: "batch", title: "Batch", short: "Batch", icon: "batch", load: () => import("./pages/batch/batch").then((page) => page.Batch) },
  { name: "cache", title: "Cache", short: "Cache", icon: "cache", load: () => import("./pages/cache/cache").then((page) => page.Cache) },
  { name: "lab", title: "Sampling lab", short: "Lab", icon: "lab", load: () => import("./pages/lab/lab").then((page) => page.Lab) },
  { name: "planner", title: "Planner", short: "Plan", icon: "planner", load: () => import("./pages/planner/planner").then((page) => page.Planner) },
  { name: "dashboard", title: "Dashboard", short: "Board", icon: "dashboard", load: () => import("./pages/dashboard/dashboard").then((page) => page.Dashboard) },
  { name: "models", title: "Models", short: "Models", icon: "models", load: () => import("./pages/models/models").then((page) => page.Models) },
  { name: "keys", title: "Keys", short: "Keys", icon: "key", load: () => import("./pages/keys/keys").then((page) => page.Keys) },
  { name: "usage", title: "Usage", short: "Usage", icon: "usage", load: () => import("./pages/usage/usage").then((page) => page.Usage) },
];

const PAGE_KEYS = "1234567890u";
const PRELOAD_MS = 1500;

const STATES = {
  connecting: "Connecting",
  loading: "Loading",
  live: "Live",
  lost: "Disconnected",
  locked: "Key required",
  off: "Events off",
} as const;

const THEMES = {
  system: ["auto", "Theme: system"],
  light: ["sun", "Theme: light"],
  dark: ["moon", "Theme: dark"],
} as const;

export function App() {
  const page = PAGES.find((other) => other.name === route.value.page) ?? PAGES[0]!;
  const main = useRef<HTMLElement>(null);
  useShortcuts("Everywhere", [
    ...PAGES.map(({ name, title }, place) => ({ keys: PAGE_KEYS[place]!, label: title, run: () => go(name) })),
    { keys: "?", label: "Show keyboard shortcuts", run: () => (helpShown.value = !helpShown.value) },
    { keys: "t", label: "Switch theme: system, light, dark", run: nextTheme },
  ]);
  useEffect(() => {
    const timers = PAGES.map(({ load }, place) => setTimeout(() => preload(load), PRELOAD_MS + 100 * place));
    return () => timers.forEach(clearTimeout);
  }, []);
  useEffect(() => {
    document.title = `${page.title} · Penstock`;
    main.current?.scrollTo(0, 0);
    document.querySelector(".rail [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }); // on phones the rail scrolls
  }, [page.name]);
  return (
    <div class="shell">
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to content
      </a>
      <nav class="rail" aria-label="Pages">
        <a class="brand" href="#/pipeline">
          <Mark />
          <span>Penstock</span>
        </a>
        <ul>
          {PAGES.map(({ name, title, short: brief, icon }) => (
            <li key={name}>
              <a href={`#/${name}`} aria-current={name === page.name ? "page" : undefined} aria-label={title}>
                <Icon name={icon} size={20} />
                <span class="long">{title}</span>
                <span class="brief" aria-hidden="true">
                  {brief}
                </span>
                {name === "dashboard" && alerts.value.length > 0 && (
                  <em class="count" aria-label={`${alerts.value.length} open alerts`}>
                    {alerts.value.length}
                  </em>
                )}
              </a>
            </li>
          ))}
        </ul>
        <Foot />
      </nav>
      <main id="main" ref={main} tabIndex={-1} data-page={page.name}>
        <Content load={page.load} name={page.name} />
      </main>
      <KeyDialog />
      <Help />
    </div>
  );
}

/** The page; until the server has loaded its model, what it is doing. A page that was shown before stays. */
function Content({ name, load }: { name: string; load: Load }) {
  const status = start.value;
  const shown = useRef(false);
  shown.current ||= status === null;
  if (shown.current) return <Lazy key={name} load={load} />;
  return status ? <Starting status={status} /> : null;
}

/** Connection state and live load, at the foot of every page. */
function Foot() {
  const now = stats.value;
  const state = connection.value;
  const [icon, label] = THEMES[themeChoice.value];
  return (
    <div class="foot">
      <div class="pulse" data-state={state} data-busy={state === "live" && (now?.running ?? 0) > 0}>
        <i />
        <strong role="status">{STATES[state]}</strong>
        {!several.value && (
          <span class="ellipsis" title={facts.value?.model.name}>
            {facts.value?.model.name ?? ""}
          </span>
        )}
      </div>
      {several.value && <SourcePicker />}
      {state === "live" && now && (
        <dl class="now">
          <div>
            <dt>running</dt>
            <dd>{count(now.running)}</dd>
          </div>
          <div>
            <dt>waiting</dt>
            <dd>{count(now.waiting)}</dd>
          </div>
          <div>
            <dt>tok/s</dt>
            <dd>{short(now.tokens_per_s)}</dd>
          </div>
        </dl>
      )}
      {state === "locked" && keyPrompt.value === null && (
        <Button icon="key" onClick={() => (allowKeyPrompt(), reconnect())}>
          Enter API key
        </Button>
      )}
      <div class="tools">
        <Button icon={icon} kind="quiet" label={label} onClick={nextTheme} />
        <Button icon="keyboard" kind="quiet" label="Keyboard shortcuts" onClick={() => (helpShown.value = true)} />
      </div>
    </div>
  );
}

/** Chooses the model and replica that the pages about one engine show. */
function SourcePicker() {
  const shown = `${facts.value?.model.name}/${facts.value?.replica}`;
  return (
    <select
      class="source"
      aria-label="Model and replica"
      value={shown}
      onChange={(event) => {
        const [model, replica] = [event.currentTarget.value.replace(/\/\d+$/, ""), Number(event.currentTarget.value.split("/").pop())];
        choose({ model, replica });
      }}
    >
      {sources.value.map(({ model, replica }) => (
        <option key={`${model}/${replica}`} value={`${model}/${replica}`}>
          {model}/{replica}
        </option>
      ))}
    </select>
  );
}

function Mark() {
  return (
    <svg width="26" height="26" viewBox="0 0 32 32" aria-hidden="true" class="mark">
      <rect width="32" height="32" rx="8" />
      <path d="M6 9h7c4.500 0 3.500 14 8 14h5" fill="none" stroke-width="4.500" stroke-linecap="round" />
      <circle cx="24.500" cy="9.500" r="2.500" />
    </svg>
  );
}
