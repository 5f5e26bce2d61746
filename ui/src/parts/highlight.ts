/** Code colours: highlight.js reads the code, and its tree becomes elements. No HTML is made of it at any point. */
import { type ComponentChild, h } from "preact";
import { createLowlight } from "lowlight";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";

const reader = createLowlight({ bash, c, cpp, csharp, css, diff, go, java, javascript, json, python, ruby, rust, sql, typescript, xml, yaml });

type Tree = ReturnType<typeof reader.highlight>["children"];

/** Null for a language that is not known. */
export function highlighted(text: string, language: string): ComponentChild[] | null {
  if (!reader.registered(language)) return null;
  return elements(reader.highlight(language, text).children);
}

function elements(tree: Tree): ComponentChild[] {
  return tree.map((node) => {
    if (node.type === "text") return node.value;
    if (node.type !== "element") return null;
    return h("span", { class: (node.properties.className as string[]).join(" ") }, elements(node.children as Tree));
  });
}
