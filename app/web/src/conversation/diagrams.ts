// Draws Mermaid diagrams in a hidden frame of an origin of its own, without network, which also sanitises them: the page's policy
// allows no styles in them, so the page does not even parse them. What comes back is only ever shown as an image.

import purifyUrl from "dompurify/dist/purify.min.js?url";
import mermaidUrl from "@mermaid-js/tiny/dist/mermaid.tiny.js?url";

import { isDark as isPageDark } from "../state/appearance.ts";

/** The diagram can't be drawn because of its text. The message is for the person. */
export class DiagramError extends Error {
  override readonly name = "DiagramError";
}

const MAX_DIAGRAM_CHARACTERS = 20_000;
const MAX_EDGES = 500;
const MAX_MESSAGE_CHARACTERS = 200;
/** A frame that has not answered within this time is removed. */
const DRAW_TIMEOUT_MS = 10_000;
const LOAD_TIMEOUT_MS = 30_000;

/** Runs in the frame. Labels are SVG text, because images show no HTML. */
const BRIDGE = `
mermaid.initialize({ startOnLoad: false, securityLevel: "strict", htmlLabels: false, flowchart: { htmlLabels: false }, suppressErrorRendering: true,
  maxTextSize: ${MAX_DIAGRAM_CHARACTERS}, maxEdges: ${MAX_EDGES}, fontFamily: "system-ui, sans-serif", theme: "THEME",
  secure: ["secure", "securityLevel", "startOnLoad", "maxTextSize", "maxEdges", "htmlLabels", "flowchart", "suppressErrorRendering", "themeCSS", "fontFamily"] });
const config = { USE_PROFILES: { svg: true, svgFilters: true }, ADD_TAGS: ["style"], FORBID_TAGS: ["a", "image", "feImage", "foreignObject", "script", "animate", "set", "use"],
  FORBID_ATTR: ["href", "xlink:href", "src"], RETURN_DOM_FRAGMENT: true };
const clean = (svg) => {
  const picture = DOMPurify.sanitize(svg, config).querySelector("svg");
  const { width, height } = picture.viewBox.baseVal;
  picture.removeAttribute("style");
  picture.setAttribute("width", width);
  picture.setAttribute("height", height);
  return new XMLSerializer().serializeToString(picture);
};
addEventListener("message", async ({ source, data }) => {
  if (source !== parent || typeof data?.diagram !== "string") return;
  try {
    const { svg } = await mermaid.render("diagram" + data.id, data.diagram);
    parent.postMessage({ id: data.id, svg: clean(svg) }, "*");
  } catch (error) {
    parent.postMessage({ id: data.id, mistake: String(error?.message ?? error) }, "*");
  }
});
parent.postMessage({ id: 0 }, "*");
`;

type Answer = { id: number; svg?: unknown; mistake?: unknown };

class DiagramFrame {
  readonly element = document.createElement("iframe");
  readonly ready: Promise<void>;
  #lastId = 0;

  constructor(scripts: readonly string[], isDark: boolean) {
    const { element } = this;
    element.src = "/preview";
    element.title = "";
    element.tabIndex = -1;
    element.sandbox.add("allow-scripts");
    element.ariaHidden = "true";
    // Out of sight, but with a layout, which the drawing measures.
    Object.assign(element.style, { position: "fixed", insetBlockStart: "0", insetInlineStart: "-3000px", width: "1200px", height: "900px", border: "0", visibility: "hidden" });
    const all = [...scripts, BRIDGE.replace("THEME", isDark ? "dark" : "default")];
    const html = `<!doctype html><body>${all.map((script) => `<script>${script}</script>`).join("")}`;
    const isReady = (data: unknown): boolean => typeof data === "object" && data !== null && "type" in data && data.type === "ready";
    const began = this.#next(isReady, LOAD_TIMEOUT_MS).then(() => {
      const loaded = this.#next((data) => idOf(data) === 0, LOAD_TIMEOUT_MS);
      element.contentWindow?.postMessage({ html }, "*");
      return loaded;
    });
    this.ready = began.then(() => undefined);
    document.body.append(element);
  }

  async draw(diagram: string): Promise<Answer> {
    await this.ready;
    const id = ++this.#lastId;
    const answer = this.#next((data) => idOf(data) === id, DRAW_TIMEOUT_MS);
    this.element.contentWindow?.postMessage({ id, diagram }, "*");
    return (await answer) as Answer;
  }

  /** The next message of the frame that fits. */
  #next(fits: (data: unknown) => boolean, timeout: number): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const end = (): void => {
        clearTimeout(timer);
        removeEventListener("message", listen);
      };
      const listen = ({ source, data }: MessageEvent<unknown>): void => {
        if (source !== this.element.contentWindow || !fits(data)) return;
        end();
        resolve(data);
      };
      const timer = setTimeout(() => {
        end();
        reject(new DiagramError("it takes too long to draw."));
      }, timeout);
      addEventListener("message", listen);
    });
  }
}

function idOf(data: unknown): unknown {
  return typeof data === "object" && data !== null && "id" in data ? data.id : undefined;
}

let scripts: Promise<string[]> | null = null;
let frame: { isDark: boolean; made: Promise<DiagramFrame> } | null = null;
let last: Promise<unknown> = Promise.resolve();

async function makeFrame(isDark: boolean): Promise<DiagramFrame> {
  scripts ??= Promise.all([mermaidUrl, purifyUrl].map(textAt));
  scripts.catch(() => (scripts = null));
  return new DiagramFrame(await scripts, isDark);
}

async function textAt(url: string): Promise<string> {
  const response = await fetch(url);
  if (!response.ok) throw new TypeError(`${url}: ${response.status}`);
  return response.text();
}

/** The diagram as sanitised SVG, one after the other. Throws a DiagramError if its text can't be drawn, or takes too long. */
export function drawDiagram(text: string): Promise<{ svg: string; isDark: boolean }> {
  const drawn = last.then(() => draw(text));
  last = drawn.catch(() => null); // its caller handles the error
  return drawn;
}

async function draw(text: string): Promise<{ svg: string; isDark: boolean }> {
  if (text.length > MAX_DIAGRAM_CHARACTERS) throw new DiagramError("it is too long.");
  const isDark = isPageDark();
  if (frame?.isDark !== isDark) await endFrame();
  frame ??= { isDark, made: makeFrame(isDark) };
  try {
    const { svg, mistake } = await (await frame.made).draw(text);
    if (typeof svg !== "string") throw new DiagramError(firstLine(String(mistake)));
    return { svg, isDark };
  } catch (error) {
    // A frame that hangs or did not load is not used again. After a mistake in a text it goes on.
    if (!(error instanceof DiagramError) || error.message.startsWith("it takes")) await endFrame();
    throw error;
  }
}

/** Without the excerpts and the names of expected tokens that follow. */
function firstLine(mistake: string): string {
  return (/^[^\n]*/.exec(mistake)?.[0] ?? "").replace(/:\s*$/, ".").slice(0, MAX_MESSAGE_CHARACTERS);
}

async function endFrame(): Promise<void> {
  const ended = frame;
  frame = null;
  (await ended?.made.catch(() => null))?.element.remove();
}
