// The side panel with each kind of thing that answers make.

import type { Block, MessageState } from "@khala/client";

import { sidePanel } from "../../src/panel/side-panel.svelte.ts";
import type { PageModel } from "../../src/state/page-model.ts";
import type { WorkspacePage } from "../../src/panel/workspace-files.ts";
import { Refusal, type Responses } from "../responses.ts";
import { CHAT_ID } from "../fixtures/ids.ts";
import { MARKDOWN } from "../fixtures/markdown.ts";
import { answer, blob, call, text } from "../fixtures/messages.ts";
import type { PageDriver } from "../page-driver.ts";
import { component, type GalleryState, type Group } from "../state.ts";
import Panel from "../views/Panel.svelte";

const view = component(Panel, {});
const STRIPES = "iVBORw0KGgoAAAANSUhEUgAAADAAAAAgAgMAAAApuhOPAAAADFBMVEU/UdH/wHgSdT////9hA6+KAAAAFklEQVR42mNkYGAIhSEmBiQwyhkMHADNFgE/gD15sQAAAABJRU5ErkJggg==";
const PICTURE = new Blob([Uint8Array.from(atob(STRIPES), (letter) => letter.charCodeAt(0))], { type: "image/png" });
const SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 120 60"><title>Lease</title><rect width="120" height="60" rx="8" fill="#3f51d1"/><circle cx="60" cy="30" r="18" fill="#fff"/></svg>';
/** Without text: the frame of a preview has only the fonts of the machine. It says when it was painted. */
const PAINTED_HTML = `<!doctype html>
<title>Leases</title>
<body style="margin: 24px">
<div style="width: 200px; height: 90px; border-radius: 12px; background: #3f51d1"></div>
<script>requestAnimationFrame(() => requestAnimationFrame(() => parent.postMessage({ type: "painted" }, "*")))</script>`;
/** The second diagram has a mistake. */
const DIAGRAMS = `## Branches

\`\`\`mermaid
gitGraph
  commit id: "Lease"
  branch review
  commit id: "Renew"
  commit id: "Expire"
  checkout main
  commit id: "Claim"
  merge review id: "Release" tag: "v1.0"
\`\`\`

\`\`\`mermaid
gitGraph
  merge nothing
\`\`\`
`;
/** Diagrams are drawn by a program that takes a second to start. */
const DIAGRAM_FRAMES = 600;
const HTML = "<!doctype html><title>Page</title><h1 style='font-family: sans-serif'>Leases</h1>";
const CSV = `name,seconds,meaning\nlease,30,how long a claim lasts\ngrace,5,"how long a worker may be silent, at most"\nعقد,30,مدة\n`;
const CODE = 'async def hold(lease: Lease) -> None:\n    """Renew the lease until the work is done."""\n    while not lease.done:\n        await lease.renew(seconds=30)\n';

function write(number: number, path: string, content: string): Block {
  return call(number, "write_file", { args: { path, content } });
}

function item(name: string, path: string | null, messages: readonly MessageState[], responses: Responses = {}, height = 420): GalleryState {
  return { name, view, height, scenario: { messages, responses }, prepare: () => sidePanel.open(CHAT_ID, path === null ? null : `file ${path}`) };
}

const MORE_CODE = `${CODE}\n\nclass Lease:\n    """A lock that expires."""\n\n    def __init__(self, seconds: int = 30) -> None:\n        self.seconds = seconds\n        self.done = False\n\n    async def renew(self, *, seconds: int) -> None:\n        """Hold it for longer."""\n        self.seconds = seconds\n`;
const EDITED = [
  answer(2, [write(1, "src/lease.py", MORE_CODE)]),
  answer(3, [call(2, "edit_file", { args: { path: "src/lease.py", old: "lease.renew(seconds=30)", new: "lease.renew(seconds=60)" } })]),
  answer(4, [call(3, "edit_file", { args: { path: "src/lease.py", old: "    def __init__(self, seconds: int = 30) -> None:\n", new: "    def __init__(self, seconds: int = 60) -> None:\n        assert seconds > 0\n" } })]),
];
/** The file as the person edited it. */
const OWN_CODE = MORE_CODE.replace("Renew the lease until", "Renew the lease again until");
const EDITABLE: Responses = { "GET /api/threads/*/workspace/file": new Blob([OWN_CODE]) };
const CHANGED: Responses = { ...EDITABLE, "PUT /api/threads/*/workspace/file": new Refusal(409, "conflict", "src/lease.py has changed since it was read.") };
/** Larger than the frame of the gallery. */
const WIDE_SVG = SVG.replace("<svg ", '<svg width="1200" height="600" ');
/** Resolves once the text of the first element that fits is selected. */
function select(driver: PageDriver, selector: string, from: number, to: number): Promise<void> {
  return driver.find(selector).then((element) => {
    const range = new Range();
    const text = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    const nodes: [Node, number][] = [];
    let at = 0;
    for (let node = text.nextNode(); node; node = text.nextNode()) {
      const length = node.textContent?.length ?? 0;
      for (const offset of [from, to]) if (offset >= at && offset <= at + length && (offset > at || offset === from)) nodes.push([node, offset - at]);
      at += length;
    }
    const [first, last] = [nodes[0], nodes.at(-1)];
    if (!first || !last) throw new Error("The text is shorter.");
    range.setStart(...first);
    range.setEnd(...last);
    getSelection()?.removeAllRanges();
    getSelection()?.addRange(range);
  });
}

const LONG_PATH = "src/queue/a_module_with_a_very_long_name_that_has_to_be_cut_somewhere.py";
const WRITTEN: Readonly<Record<string, string>> = { "README.md": MARKDOWN, "data/settings.csv": CSV, "src/lease.py": CODE, [LONG_PATH]: CODE };
const MADE: readonly Block[] = [
  ...Object.entries(WRITTEN).map(([path, content], at) => write(at + 1, path, content)),
  write(5, "old.txt", "x"),
  call(6, "delete_file", { args: { path: "old.txt" } }),
  text(`\`\`\`svg\n${SVG}\n\`\`\``),
];
const WORKSPACE: WorkspacePage = { items: Object.entries(WRITTEN).map(([path, content]) => ({ path, size: new Blob([content]).size })) };

/** Resolves when the preview of HTML is painted: the frame of a preview has its own rhythm. */
let painted: Promise<void> = Promise.resolve();

function watchPreview(page: PageModel): void | Promise<void> {
  painted = new Promise((resolve) => {
    addEventListener("message", ({ data }: MessageEvent<unknown>) => {
      if (typeof data === "object" && data !== null && "type" in data && data.type === "painted") resolve();
    });
  });
  return PREVIEWED.prepare?.(page);
}

const PREVIEWED = item("HTML", "leases.html", [answer(2, [write(1, "leases.html", PAINTED_HTML)])]);

const states: readonly GalleryState[] = [
  // The first one, because browsers paint frames of other origins only where they are in the window.
  { ...PREVIEWED, prepare: watchPreview, act: () => painted },
  item("no files", null, [answer(2, "Nothing was made.")], { "GET /api/threads/*/workspace": { items: [] } }, 240),
  { ...item("all files", null, [answer(2, MADE)], { "GET /api/threads/*/workspace": WORKSPACE }, 640), act: (driver) => driver.press("[aria-expanded]") },
  item("code", "src/lease.py", [answer(2, [write(1, "src/lease.py", MORE_CODE)])]),
  { ...item("a selected passage", "src/lease.py", [answer(2, [write(1, "src/lease.py", CODE)])], {}, 300), act: async (driver) => { await select(driver, "pre code", CODE.indexOf("    while"), CODE.length - 1); await driver.find(".quote"); } },
  { ...item("more actions", "src/lease.py", [answer(2, [write(1, "src/lease.py", CODE)])], {}, 300), act: (driver) => driver.press(".icon[aria-haspopup=menu]") },
  { ...item("changes", "src/lease.py", EDITED), act: (driver) => driver.press('[aria-label="Changes"], [aria-label="التغييرات"]') },
  { ...item("an edited version", "src/lease.py", [answer(2, [write(1, "src/lease.py", MORE_CODE)])], EDITABLE), act: (driver) => driver.press('[aria-label="Changes"], [aria-label="التغييرات"]') },
  { ...item("an edit", "src/lease.py", [answer(2, [write(1, "src/lease.py", MORE_CODE)])], EDITABLE), act: beginEdit },
  {
    ...item("an edit of a file that has changed", "src/lease.py", [answer(2, [write(1, "src/lease.py", MORE_CODE)])], CHANGED),
    act: async (driver) => {
      await beginEdit(driver);
      await driver.type(".editor textarea", `# A longer first line\n${OWN_CODE}`);
      await driver.press(".small.primary");
      await driver.find(".wrong:not(:empty)");
    },
  },
  item("Markdown", "README.md", [answer(2, [write(1, "README.md", MARKDOWN.slice(0, 400))])]),
  { ...item("diagrams", "branches.md", [answer(2, [write(1, "branches.md", DIAGRAMS)])], {}, 520), act: findDiagrams },
  item("a table", "data/settings.csv", [answer(2, [write(1, "data/settings.csv", CSV)])]),
  { ...item("a sorted table", "data/settings.csv", [answer(2, [write(1, "data/settings.csv", `${CSV}renewals,"1,200",in a day\nlimit,,\n`)])]), act: (driver) => driver.press("th:nth-child(2) button") },
  item("SVG", "lease.svg", [answer(2, [write(1, "lease.svg", SVG)])]),
  { ...item("SVG in its own size", "lease.svg", [answer(2, [write(1, "lease.svg", WIDE_SVG)])]), act: async (driver) => { await driver.press(".picture + .segments button:last-child"); } },
  item("SVG with a mistake", "lease.svg", [answer(2, [write(1, "lease.svg", SVG.replace("</svg>", ""))])], {}, 240),
  { ...item("HTML as code", "index.html", [answer(2, [write(1, "index.html", HTML)])]), act: (driver) => driver.press(".segments button:last-child") },
  item("an image", "stripes.png", [answer(2, [{ type: "file", blob: blob(1, "stripes.png", "image/png", 70) }])], { "GET /api/blobs/*": PICTURE }),
  item("another file", "archive.zip", [answer(2, [{ type: "file", blob: blob(1, "archive.zip", "application/zip", 70_000) }])]),
  item("a deleted file", "old.txt", [answer(2, [write(1, "old.txt", "It was here."), call(2, "delete_file", { args: { path: "old.txt" } })])]),
  item("a file that cannot be loaded", "notes.txt", [answer(2, [{ type: "file", blob: blob(1, "notes.txt", "text/plain", 70) }])], { "GET /api/blobs/*": new Refusal(404, "blob_not_found", "It was deleted.") }),
];

async function beginEdit(driver: PageDriver): Promise<void> {
  await driver.press('[aria-label="Edit"], [aria-label="تعديل"]');
  await driver.find(".editor textarea");
}

async function findDiagrams(driver: PageDriver): Promise<void> {
  await driver.find(".picture img", undefined, DIAGRAM_FRAMES);
  await driver.find(".picture-note", undefined, DIAGRAM_FRAMES);
}

export const panel: Group = { name: "panel", width: 640, states };
