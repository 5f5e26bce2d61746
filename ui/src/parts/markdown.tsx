/**
 * Markdown as elements. What a model writes never becomes HTML: markdown-it reads it with HTML switched off, and its
 * tokens become elements of a fixed list. Links go out only where they name http, https or mail; images stay links,
 * since a picture would be a request to somewhere else.
 */
import MarkdownIt from "markdown-it";
import { type ComponentChild, h } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { CopyButton } from "./basics";

type Piece = ReturnType<InstanceType<typeof MarkdownIt>["parse"]>[number];

const reader = new MarkdownIt({ html: false, linkify: false, typographer: false });
const TAGS = new Set(
  "p h1 h2 h3 h4 h5 h6 ul ol li blockquote em strong s table thead tbody tr th td".split(" "),
);
/** Longer blocks are shown as plain text: crafted ones could take long to parse. */
const LONGEST_BLOCK = 10_000;

export function Markdown({ text }: { text: string }) {
  return (
    <div class="markdown" dir="auto">
      {blocks(text).map((block, place) => (
        <Block key={place} text={block} />
      ))}
    </div>
  );
}

/** While a response streams only its last block changes; the others are memoized. */
function Block({ text }: { text: string }) {
  return useMemo(() => (text.length > LONGEST_BLOCK ? <p class="as-is">{text}</p> : <div>{elements(text)}</div>), [text]);
}

const FENCE = /^ {0,3}(```+|~~~+)/;
const ITEM = /^(?:[-*+]|\d+[.)])\s/;

/** Blocks that can be parsed separately: split at empty lines, but not within code, lists or indented text. */
export function blocks(text: string): string[] {
  const found: string[] = [];
  let current: string[] = [];
  let fence = "";
  let empty = false;
  for (const line of text.split("\n")) {
    if (!fence && empty && line.trim() && !/^\s/.test(line) && !(ITEM.test(current[0] ?? "") && ITEM.test(line))) {
      found.push(current.join("\n"));
      current = [];
    }
    const mark = FENCE.exec(line)?.[1] ?? "";
    if (!fence) fence = mark;
    else if (mark.startsWith(fence) && line.trim() === mark) fence = "";
    empty = !line.trim();
    if (current.length || !empty) current.push(line);
  }
  if (current.length) found.push(current.join("\n"));
  return found;
}

function elements(text: string): ComponentChild[] {
  return nested(reader.parse(text, {}));
}

interface Open {
  tag: string | typeof Link;
  props: Record<string, unknown>;
  children: ComponentChild[];
}

function nested(pieces: Piece[]): ComponentChild[] {
  const root: Open = { tag: "div", props: {}, children: [] };
  const open: Open[] = [root];
  for (const piece of pieces) {
    const top = open.at(-1) ?? root;
    if (piece.nesting === 1) open.push(opened(piece));
    else if (piece.nesting === -1) {
      if (open.length < 2) continue;
      open.pop();
      (open.at(-1) ?? root).children.push(h(top.tag as string, top.props, top.children));
    } else top.children.push(...single(piece));
  }
  while (open.length > 1) {
    const top = open.pop()!;
    open.at(-1)!.children.push(h(top.tag as string, top.props, top.children));
  }
  return root.children;
}

function opened(piece: Piece): Open {
  if (piece.type === "link_open") return { tag: Link, props: { href: String(piece.attrGet("href") ?? "") }, children: [] };
  if (piece.hidden || !TAGS.has(piece.tag)) return { tag: "span", props: {}, children: [] };
  const start = piece.tag === "ol" ? piece.attrGet("start") : null;
  const heading = /^h([1-6])$/.exec(piece.tag); // the page already has an h1
  const tag = heading ? `h${Math.min(6, Number(heading[1]) + 2)}` : piece.tag;
  return { tag, props: { dir: piece.block ? "auto" : undefined, start: start ?? undefined }, children: [] };
}

function single(piece: Piece): ComponentChild[] {
  switch (piece.type) {
    case "inline":
      return nested(piece.children ?? []);
    case "text":
      return [piece.content];
    case "code_inline":
      return [<code>{piece.content}</code>];
    case "softbreak":
      return ["\n"];
    case "hardbreak":
      return [<br />];
    case "hr":
      return [<hr />];
    case "fence":
    case "code_block":
      return [<Code text={piece.content} language={piece.info.trim().split(/\s/)[0] ?? ""} />];
    case "image":
      return [<Link href={String(piece.attrGet("src") ?? "")}>{piece.content || "image"}</Link>];
    default:
      return [piece.content];
  }
}

function Link({ href, children }: { href: string; children?: ComponentChild }) {
  if (!/^(https?:|mailto:)/i.test(href)) return <span>{children}</span>;
  return (
    <a href={href} target="_blank" rel="noopener noreferrer nofollow" title={href}>
      {children}
    </a>
  );
}

const COLOURED = 20_000; // characters; longer code stays plain
const COLOUR_MS = 120; // after the last change: code that streams is not coloured at every token

function Code({ text, language }: { text: string; language: string }) {
  const [coloured, setColoured] = useState<{ text: string; nodes: ComponentChild[] } | null>(null);
  useEffect(() => {
    if (!language || text.length > COLOURED) return;
    let shown = true;
    const timer = setTimeout(() => {
      void import("./highlight").then(({ highlighted }) => {
        const nodes = shown ? highlighted(text, language.toLowerCase()) : null;
        if (nodes) setColoured({ text, nodes });
      }, () => undefined);
    }, COLOUR_MS);
    return () => {
      shown = false;
      clearTimeout(timer);
    };
  }, [text, language]);
  return (
    <figure class="code">
      <figcaption>
        <span>{language || "text"}</span>
        <CopyButton text={() => text} label="Copy the code" />
      </figcaption>
      <pre dir="ltr" tabIndex={0}>
        <code>
          {coloured && text.startsWith(coloured.text) ? [...coloured.nodes, text.slice(coloured.text.length)] : text}
        </code>
      </pre>
    </figure>
  );
}
