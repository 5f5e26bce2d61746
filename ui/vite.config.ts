import { defineConfig } from "vite";

// `npm run dev` proxies to a running server: PENSTOCK_URL, or the one `penstock serve` starts by default.
const server = (globalThis as { process?: { env: Record<string, string | undefined> } }).process?.env.PENSTOCK_URL;
const target = server ?? "http://127.0.0.1:8000";
const paths = ["/v1", "/tokenize", "/detokenize", "/metrics", "/version", "/ready", "/health", "/observe", "/plan", "/slo", "/admin", "/sleep", "/wake_up", "/usage"];

export default defineConfig({
  base: "/ui/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/penstock/ui_dist",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // no data: URLs, so that the content security policy needs none
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 400,
  },
  server: { proxy: Object.fromEntries(paths.map((path) => [path, { target }])) },
});
