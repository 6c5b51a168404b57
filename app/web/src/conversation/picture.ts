// Pictures of code: SVG, and diagrams in Mermaid's language. They are shown as images, which run no scripts and load nothing.

import { m } from "../i18n/messages.ts";
import type { DiagramMistake } from "./diagram-mistakes.ts";
import { isDiagram } from "./picture-languages.ts";
import { cancelOnceVisible, onceVisible } from "./visibility.ts";

/** Shows the picture in place of the code. If that fails, the code stays, with a note. */
export async function showPicture(frame: Element): Promise<void> {
  const [language, code] = sourceOf(frame);
  try {
    const picture = await pictureOf(language, code);
    if (sourceOf(frame)[1] === code) place(frame, picture, isDiagram(language));
  } catch (error) {
    note(frame, error instanceof Error ? error.message : String(error));
  }
}

/** The picture of this code. A diagram is in the colours of the page's theme. Throws an error with a message for the person. */
export async function pictureOf(language: string, code: string): Promise<HTMLImageElement> {
  return isDiagram(language) ? loaded(await drawn(code), m.picture_diagram()) : loaded(code, m.picture_of_code());
}

/** Calls `act` after each change of the page's theme. Returns what ends that. */
export function onThemeChange(act: () => void): () => void {
  const chosen = new MutationObserver(act);
  chosen.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", act);
  return () => {
    chosen.disconnect();
    system.removeEventListener("change", act);
  };
}

/** Handles a click on a button of a frame that has a picture, or can have one. */
export async function handlePictureButton(button: Element, frame: Element): Promise<void> {
  const [language, code] = sourceOf(frame);
  if (button.matches(".save")) savePicture(await pictureOf(language, code), language);
  else if (button.matches(".enlarge")) (await import("./picture-viewer.ts")).viewPicture(language, code);
  else if (frame.querySelector(".picture")) showCode(frame);
  else await showPicture(frame);
}

/** Saves the picture as the page shows it now, as a download of the browser. */
export function savePicture(image: HTMLImageElement, language: string): void {
  Object.assign(document.createElement("a"), { href: image.src, download: isDiagram(language) ? "diagram.svg" : "picture.svg" }).click();
}

function sourceOf(frame: Element): [language: string, code: string] {
  return [frame.querySelector(".language")?.textContent ?? "", frame.querySelector("code")?.textContent ?? ""];
}

/** Diagrams that are shown follow the theme from the first one on. Those out of sight wait until they are nearly visible. */
let followsTheme = false;

function followTheme(): void {
  if (followsTheme) return;
  followsTheme = true;
  onThemeChange(() => {
    for (const frame of document.querySelectorAll(".code:has(> .picture.diagram)")) {
      cancelOnceVisible(frame);
      onceVisible(frame, () => void (frame.querySelector(":scope > .picture") && showPicture(frame)));
    }
  });
}

async function drawn(code: string): Promise<string> {
  followTheme();
  const { drawDiagram, DiagramError } = await import("./diagrams.ts");
  try {
    return await drawDiagram(code);
  } catch (error) {
    if (error instanceof DiagramError) throw new Error(wordsOf(error.mistake), { cause: error });
    throw error;
  }
}

function wordsOf(mistake: DiagramMistake): string {
  switch (mistake.kind) {
    case "line": return m.picture_mistake_in_line({ line: mistake.line });
    case "unknown": return m.picture_unknown_kind({ name: mistake.name });
    case "large": return m.picture_too_large();
    case "other": return m.picture_mistake({ error: mistake.message });
  }
}

async function loaded(svg: string, alt: string): Promise<HTMLImageElement> {
  const image = new Image();
  image.alt = alt;
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode().catch((error: unknown) => {
    throw new Error(m.picture_broken(), { cause: error });
  });
  return image;
}

function place(frame: Element, image: HTMLImageElement, isOfDiagram: boolean): void {
  frame.querySelector(".picture, .picture-note")?.remove();
  const box = document.createElement("div");
  box.className = isOfDiagram ? "picture diagram" : "picture";
  box.tabIndex = 0;
  if (isOfDiagram) image.style.setProperty("--own-width", `${image.naturalWidth}px`);
  box.append(image);
  frame.append(box);
  if (!frame.querySelector(".enlarge")) frame.querySelector(".look")?.after(iconButton("enlarge", m.full_screen()), iconButton("save", m.download()));
  setCodeHidden(frame, true);
}

/** Its icon is a style, so that a frame has no SVG but what it shows as an image. */
function iconButton(name: string, words: string): HTMLButtonElement {
  const button = document.createElement("button");
  button.type = "button";
  button.className = `quiet ${name}`;
  button.title = words;
  button.ariaLabel = words;
  return button;
}

function showCode(frame: Element): void {
  frame.querySelector(".picture")?.remove();
  for (const button of frame.querySelectorAll(".enlarge, .save")) button.remove();
  setCodeHidden(frame, false);
}

function setCodeHidden(frame: Element, isHidden: boolean): void {
  const [code, button] = [frame.querySelector("pre"), frame.querySelector(".look")];
  if (code) code.hidden = isHidden;
  if (button) button.textContent = isHidden ? m.picture_code() : m.preview_action();
}

function note(frame: Element, words: string): void {
  showCode(frame);
  frame.querySelector(".picture-note")?.remove();
  const line = document.createElement("p");
  line.className = "picture-note";
  line.textContent = words;
  frame.append(line);
}
