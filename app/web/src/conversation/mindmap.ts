// Mind maps as flowcharts: the small build of Mermaid that the page has draws flowcharts, but no mind maps.

type Topic = { readonly indent: number; readonly id: number; readonly depth: number; readonly branch: number };

const HEAD = /^(?:\s*(?:%%.*)?\n)*\s*mindmap\s*(?:\n|$)/;
/** The brackets around a topic, longest first, and those of the same shape in flowcharts. */
const SHAPES: readonly (readonly [open: string, close: string, shape: readonly [string, string]])[] = [
  ["((", "))", ["((", "))"]],
  ["))", "((", ["([", "])"]],
  ["{{", "}}", ["{{", "}}"]],
  ["(", ")", ["(", ")"]],
  [")", "(", ["([", "])"]],
  ["[", "]", ["[", "]"]],
];
const PLAIN = ["(", ")"] as const;
/** Branches have colours by turns: as many as the theme has for sections. */
const TONES = 6;

/** A mind map as a flowchart from left to right, with `tones` as colours of its branches. Other diagrams stay as they are. */
export function asFlowchart(diagram: string, tones: readonly string[], onTone: string): string {
  const head = HEAD.exec(diagram);
  if (!head) return diagram;
  const lines = ["flowchart LR"];
  const path: Topic[] = [];
  let id = 0;
  let branches = 0;
  for (const line of diagram.slice(head[0].length).split("\n")) {
    const text = line.replace(/%%.*$/, "").trim();
    if (text === "" || text.startsWith("::icon(") || text.startsWith(":::")) continue;
    const indent = line.length - line.trimStart().length;
    while (path.length > 1 && (path.at(-1)?.indent ?? 0) >= indent) path.pop();
    const parent = path.at(-1);
    const topic: Topic = { indent, id: id++, depth: parent ? parent.depth + 1 : 0, branch: parent?.depth === 0 ? branches++ : (parent?.branch ?? 0) };
    path.push(topic);
    lines.push(`  t${topic.id}${shaped(text)}:::${topic.depth === 0 ? "centre" : topic.depth === 1 ? `branch${topic.branch % TONES}` : "leaf"}`);
    if (parent) lines.push(`  t${parent.id} --- t${topic.id}`);
  }
  const colour = (tone: string | undefined): string => `fill:${tone},stroke:${tone},color:${onTone}`;
  lines.push(`  classDef centre ${colour(tones[0])},font-weight:bold`, ...tones.slice(0, TONES).map((tone, at) => `  classDef branch${at} ${colour(tone)}`));
  return lines.join("\n");
}

/** A topic's text in the brackets of a flowchart: `id((text))`, `(text)` and `text` all have a shape. */
function shaped(text: string): string {
  for (const [open, close, [left, right]] of SHAPES) {
    const at = text.indexOf(open);
    if (at >= 0 && text.endsWith(close) && text.length > at + open.length + close.length && /^[\w-]*$/.test(text.slice(0, at))) return quoted(text.slice(at + open.length, -close.length), left, right);
  }
  return quoted(text, ...PLAIN);
}

function quoted(text: string, left: string, right: string): string {
  const plain = text.replace(/^"(.*)"$/, "$1").replace(/^`(.*)`$/, "$1").replace(/<br\s*\/?>/gi, " ").replaceAll('"', "#quot;");
  return `${left}"${plain}"${right}`;
}
