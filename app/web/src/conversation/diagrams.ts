// Draws Mermaid diagrams in a hidden frame of an origin of its own, without network, which also sanitises them: the page's policy
// allows no styles in them, so the page does not even parse them. What comes back is only ever shown as an image.

import fontUrl from "@fontsource-variable/geist/files/geist-latin-wght-normal.woff2?url";
import purifyUrl from "dompurify/dist/purify.min.js?url";
import mermaidUrl from "@mermaid-js/tiny/dist/mermaid.tiny.js?url";

import { DIAGRAM_WIDTH_PX, diagramLook, diagramStyle, tonesOf } from "./diagram-theme.ts";
import { DiagramError, mistakeOf } from "./diagram-mistakes.ts";
import { asFlowchart } from "./mindmap.ts";

const MAX_DIAGRAM_CHARACTERS = 20_000;
const MAX_EDGES = 500;
/** A frame that has not answered within this time is removed. */
const DRAW_TIMEOUT_MS = 10_000;
const LOAD_TIMEOUT_MS = 30_000;

/** Runs in the frame. Labels are SVG text, because images show no HTML. */
const BRIDGE = `
mermaid.initialize({ ...LOOK, startOnLoad: false, securityLevel: "strict", htmlLabels: false, flowchart: { htmlLabels: false }, suppressErrorRendering: true,
  maxTextSize: ${MAX_DIAGRAM_CHARACTERS}, maxEdges: ${MAX_EDGES}, fontFamily: FAMILY,
  secure: ["secure", "securityLevel", "startOnLoad", "maxTextSize", "maxEdges", "htmlLabels", "flowchart", "suppressErrorRendering", "theme", "themeCSS", "fontFamily"] });
const config = { USE_PROFILES: { svg: true, svgFilters: true }, ADD_TAGS: ["style"], FORBID_TAGS: ["a", "image", "feImage", "foreignObject", "script", "animate", "set", "use"],
  FORBID_ATTR: ["href", "xlink:href", "src"], RETURN_DOM_FRAGMENT: true };
const clean = (svg) => {
  const picture = DOMPurify.sanitize(svg, config).querySelector("svg");
  const { width, height } = picture.viewBox.baseVal;
  picture.removeAttribute("style");
  picture.setAttribute("width", width);
  picture.setAttribute("height", height);
  picture.style.background = LOOK.themeVariables.background;
  picture.append(Object.assign(document.createElementNS("http://www.w3.org/2000/svg", "style"), { textContent: FONT + STYLE }));
  contrast(picture);
  // Mermaid measures these labels as if they were HTML, and puts them off the middle.
  for (const label of picture.querySelectorAll(".statediagram-state > .label")) label.setAttribute("transform", label.getAttribute("transform")?.replace(/translate\\([^,]*/, "translate(0") ?? "");
  return new XMLSerializer().serializeToString(picture);
};
// Nodes that the diagram's author has filled get text that stands out from it, whatever the theme is.
const probe = document.body.appendChild(document.createElement("i"));
const isBright = (fill) => {
  probe.style.color = "";
  probe.style.color = fill;
  const [red, green, blue, alpha = 1] = (getComputedStyle(probe).color.match(/[\\d.]+/g) ?? []).map(Number);
  return probe.style.color === "" || alpha < 0.6 ? null : 0.299 * red + 0.587 * green + 0.114 * blue > 140;
};
const contrast = (picture) => {
  for (const shape of picture.querySelectorAll("g.node > :is(rect, polygon, path, circle, ellipse)[style*=fill], g.node > g > :is(rect, polygon, path, circle, ellipse)[style*=fill]")) {
    const label = shape.closest("g.node").querySelector(".label");
    const bright = /(?:^|;)\\s*color\\s*:/.test(label?.getAttribute("style") ?? "") ? null : isBright(shape.style.fill);
    if (bright !== null) for (const text of label?.querySelectorAll("text, tspan") ?? []) text.style.setProperty("fill", bright ? "#1a1d24" : "#ffffff", "important");
  }
};
addEventListener("message", async ({ source, data }) => {
  if (source !== parent || typeof data?.diagram !== "string") return;
  try {
    await document.fonts.load("16px " + FAMILY); // labels are measured
    const { svg } = await mermaid.render("diagram" + data.id, data.diagram);
    parent.postMessage({ id: data.id, svg: clean(svg) }, "*");
  } catch (error) {
    parent.postMessage({ id: data.id, mistake: String(error?.message ?? error) }, "*");
  }
});
parent.postMessage({ id: 0 }, "*");
`;

const FAMILY = '"Geist Variable", system-ui, sans-serif';

/** What every frame loads: the scripts that draw, and a rule with the page's typeface, which images can't load themselves. */
type FrameParts = { scripts: string[]; font: string };

type Answer = { id: number; svg?: unknown; mistake?: unknown };

class DiagramFrame {
  readonly element = document.createElement("iframe");
  readonly ready: Promise<void>;
  #lastId = 0;

  constructor({ scripts, font }: FrameParts, isDark: boolean) {
    const { element } = this;
    element.src = "/preview";
    element.title = "";
    element.tabIndex = -1;
    element.sandbox.add("allow-scripts");
    element.ariaHidden = "true";
    // Out of sight, but with a layout, which the drawing measures.
    Object.assign(element.style, { position: "fixed", insetBlockStart: "0", insetInlineStart: "-3000px", width: `${DIAGRAM_WIDTH_PX}px`, height: "900px", border: "0", visibility: "hidden" });
    const look = Object.entries({ LOOK: diagramLook(isDark), STYLE: diagramStyle(isDark), FONT: font, FAMILY });
    const all = [...scripts, ...look.map(([name, value]) => `const ${name} = ${JSON.stringify(value)};`), BRIDGE];
    const html = `<!doctype html><style>${font}</style><body>${all.map((script) => `<script>${script}</script>`).join("")}`;
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
        reject(new DiagramError({ kind: "large" }));
      }, timeout);
      addEventListener("message", listen);
    });
  }
}

function idOf(data: unknown): unknown {
  return typeof data === "object" && data !== null && "id" in data ? data.id : undefined;
}

let parts: Promise<FrameParts> | null = null;
let frame: { isDark: boolean; made: Promise<DiagramFrame> } | null = null;
let last: Promise<unknown> = Promise.resolve();

/** Whether the page is dark now: by the applied theme, or by that of the system. */
function isPageDark(): boolean {
  const applied = document.documentElement.dataset.theme;
  return applied === "dark" || (applied !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
}

async function makeFrame(isDark: boolean): Promise<DiagramFrame> {
  parts ??= Promise.all([fontRule(), textAt(mermaidUrl), textAt(purifyUrl)]).then(([font, ...scripts]) => ({ font, scripts }));
  parts.catch(() => (parts = null));
  return new DiagramFrame(await parts, isDark);
}

/** The rule that makes the typeface part of a picture; without the file, pictures have the system's font. */
async function fontRule(): Promise<string> {
  try {
    const bytes = new Uint8Array(await (await responseAt(fontUrl)).arrayBuffer());
    const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
    return `@font-face { font-family: "Geist Variable"; font-weight: 100 900; src: url(data:font/woff2;base64,${text}) format("woff2"); }`;
  } catch (error) {
    console.info("Diagrams are shown in the system's font.", error);
    return "";
  }
}

async function textAt(url: string): Promise<string> {
  return (await responseAt(url)).text();
}

async function responseAt(url: string): Promise<Response> {
  const response = await fetch(url);
  if (!response.ok) throw new TypeError(`${url}: ${response.status}`);
  return response;
}

export { DiagramError };

/**
 * The diagram as sanitised SVG in the colours of the page's theme, one after the other. Throws a DiagramError if its text can't
 * be drawn, or takes too long.
 */
export function drawDiagram(text: string): Promise<string> {
  const drawn = last.then(() => draw(text));
  last = drawn.catch(() => null); // its caller handles the error
  return drawn;
}

async function draw(text: string): Promise<string> {
  if (text.length > MAX_DIAGRAM_CHARACTERS) throw new DiagramError({ kind: "large" });
  const isDark = isPageDark();
  if (frame?.isDark !== isDark) await endFrame();
  frame ??= { isDark, made: makeFrame(isDark) };
  try {
    const { svg, mistake } = await (await frame.made).draw(asFlowchart(text, ...tonesOf(isDark)));
    if (typeof svg !== "string") throw new DiagramError(mistakeOf(String(mistake), text));
    return svg;
  } catch (error) {
    // A frame that hangs or did not load is not used again. After a mistake in a text it goes on.
    if (!(error instanceof DiagramError) || error.mistake.kind === "large") await endFrame();
    throw error;
  }
}

async function endFrame(): Promise<void> {
  const ended = frame;
  frame = null;
  (await ended?.made.catch(() => null))?.element.remove();
}
