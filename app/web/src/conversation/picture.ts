// Pictures of code: SVG, and diagrams in Mermaid's language. They are shown as images, which run no scripts and load nothing.

import { isDiagram, isSvg } from "./picture-languages.ts";

const LABELS = { preview: "Preview", code: "Code", svg: "Picture of the code", diagram: "Diagram", broken: "This picture can’t be shown.", mistake: "This diagram has a mistake:" };
const MAX_PICTURE_CHARACTERS = 200_000;

/** Whether the code of a frame can be shown as a picture. */
export function hasPicture(language: string, code: string): boolean {
  return code.trim() !== "" && code.length <= MAX_PICTURE_CHARACTERS && (isDiagram(language) || isSvg(language, code));
}

/** Shows the picture in place of the code, or the code again. */
export async function togglePicture(frame: Element): Promise<void> {
  if (frame.querySelector(".picture")) return showCode(frame);
  await showPicture(frame);
}

/** Shows the picture in place of the code. If that fails, the code stays, with a note. */
export async function showPicture(frame: Element): Promise<void> {
  const language = frame.querySelector(".language")?.textContent ?? "";
  const code = frame.querySelector("code")?.textContent ?? "";
  try {
    const { svg, isDark } = isDiagram(language) ? await drawn(code) : { svg: code, isDark: false };
    const image = await loaded(svg, isDiagram(language) ? LABELS.diagram : LABELS.svg);
    if (frame.querySelector("code")?.textContent === code) place(frame, image, isDark);
  } catch (error) {
    note(frame, error instanceof Error ? error.message : String(error));
  }
}

async function drawn(code: string): Promise<{ svg: string; isDark: boolean }> {
  const { drawDiagram, DiagramError } = await import("./diagrams.ts");
  try {
    return await drawDiagram(code);
  } catch (error) {
    if (error instanceof DiagramError) throw new Error(`${LABELS.mistake} ${error.message}`, { cause: error });
    throw error;
  }
}

async function loaded(svg: string, alt: string): Promise<HTMLImageElement> {
  const image = new Image();
  image.alt = alt;
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode().catch((error: unknown) => {
    throw new Error(LABELS.broken, { cause: error });
  });
  return image;
}

function place(frame: Element, image: HTMLImageElement, isDark: boolean): void {
  frame.querySelector(".picture, .picture-note")?.remove();
  const box = document.createElement("div");
  box.className = isDark ? "picture dark" : "picture";
  box.append(image);
  frame.append(box);
  setCodeHidden(frame, true);
}

function showCode(frame: Element): void {
  frame.querySelector(".picture")?.remove();
  setCodeHidden(frame, false);
}

function setCodeHidden(frame: Element, isHidden: boolean): void {
  const [code, button] = [frame.querySelector("pre"), frame.querySelector(".look")];
  if (code) code.hidden = isHidden;
  if (button) button.textContent = isHidden ? LABELS.code : LABELS.preview;
}

function note(frame: Element, words: string): void {
  frame.querySelector(".picture-note")?.remove();
  const line = document.createElement("p");
  line.className = "picture-note";
  line.textContent = words;
  frame.append(line);
}
