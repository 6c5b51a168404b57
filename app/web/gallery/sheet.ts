// A sheet: all states of a group in one variant, each in a frame of its own, under its name.

import "../src/style/fonts.ts";
import "./fonts.css";
import "./sheet.css";

import type { Report } from "./frame.ts";
import { loadMessages } from "../src/i18n/load-messages.ts";
import { nextFrame } from "./page-driver.ts";
import { groupOf, GROUPS } from "./groups.ts";
import { factsOf, VARIANTS, type Variant } from "./variants.ts";

const MAX_WIDTH = 1360;
const GAP = 20;
const LABEL_HEIGHT = 24;
const WARM_UP_FRAMES = 2;
const MAX_FRAMES = 600;

type Frame = { element: HTMLElement; frame: HTMLIFrameElement; address: string; name: string; height: number; isFixed: boolean; problem: string };
/** Where a state is on the sheet, in pixels. `problem` says why it is not shown; empty if it is. */
export type Place = { name: string; x: number; y: number; width: number; height: number; problem: string };

declare global {
  /** The places of all states, once they are shown. */
  var places: readonly Place[] | undefined;
  /** Show the states in another variant of the same language. */
  var showVariant: (variant: Variant) => Promise<readonly Place[]>;
}

/** Show a sheet, or the list of all sheets without a group. Sets `places` when all its states are shown. */
export async function showSheet(group: string, variant: Variant): Promise<void> {
  document.documentElement.className = "sheet";
  document.body.append(navigation());
  if (group === "") return;
  await loadMessages(); // modules of the page need them
  const { states, width: own } = await groupOf(group);
  const { width = own, isDark } = factsOf(variant);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  const sheet = document.body.appendChild(document.createElement("main"));
  const frames = states.map(({ name, height }, number) => addFrame(sheet, name, width, height ?? 0, `#${group}/${variant}/${number}`));
  let isShown: (report: Report) => void = () => undefined;
  addEventListener("message", ({ data, origin }: MessageEvent<Report>) => origin === location.origin && isShown(data));
  // The browser keeps compiled code from the second frame on, so the others wait for it.
  const load = (some: readonly Frame[]): Promise<void> =>
    new Promise((resolve) => {
      let left = some.length;
      isShown = (report) => {
        const frame = frames[report.number];
        if (frame && report.type === "failed") frame.problem = report.problem;
        if (frame && report.type === "shown") frame.height ||= report.height;
        if (--left === 0) resolve();
      };
      for (const { frame, address } of some) frame.src = address;
      if (left === 0) resolve();
    });
  for (let at = 0; at < WARM_UP_FRAMES; at++) await load(frames.slice(at, at + 1));
  await load(frames.slice(WARM_UP_FRAMES));
  globalThis.places = place(sheet, frames, width);
  // The same frames in another theme and width, as after turning a phone.
  globalThis.showVariant = async (other) => {
    const { width: fresh = own, isDark: dark } = factsOf(other);
    const before = new Set(dark === isDark ? [] : diagramsOf(frames));
    for (const { documentElement } of [document, ...frames.flatMap(({ frame }) => frame.contentDocument ?? [])]) documentElement.dataset.theme = dark ? "dark" : "light";
    for (const { frame } of frames) frame.style.width = `${fresh}px`;
    await nextFrame();
    await nextFrame();
    // Diagrams are drawn again in the other theme.
    for (let frame = 0; frame < MAX_FRAMES && diagramsOf(frames).some((src) => before.has(src)); frame++) await nextFrame();
    for (const one of frames) if (!one.isFixed) one.height = heightOf(one.frame.contentDocument);
    return place(sheet, frames, fresh);
  };
}

function diagramsOf(frames: readonly Frame[]): string[] {
  return frames.flatMap(({ frame }) => [...(frame.contentDocument?.querySelectorAll<HTMLImageElement>(".picture.diagram img") ?? [])].map(({ src }) => src));
}

function heightOf(shown: Document | null): number {
  return Math.ceil(shown?.body.getBoundingClientRect().height ?? 0);
}

function addFrame(sheet: HTMLElement, name: string, width: number, height: number, hash: string): Frame {
  const element = sheet.appendChild(document.createElement("section"));
  element.append(Object.assign(document.createElement("h2"), { textContent: name }));
  const frame = element.appendChild(document.createElement("iframe"));
  frame.title = name;
  frame.style.width = `${width}px`;
  frame.style.height = `${height || 400}px`;
  return { element, frame, address: `/${hash}`, name, height, isFixed: height > 0, problem: "" };
}

/** Put each frame into the column that is the shortest so far. */
function place(sheet: HTMLElement, frames: readonly Frame[], width: number): Place[] {
  const count = Math.max(1, Math.floor((MAX_WIDTH + GAP) / (width + GAP)));
  const bottoms = Array.from({ length: count }, () => GAP);
  const top = sheet.offsetTop;
  const places = frames.map(({ element, frame, name, height, problem }) => {
    const column = bottoms.indexOf(Math.min(...bottoms));
    const [x, y] = [GAP + column * (width + GAP), bottoms[column] ?? 0];
    element.style.translate = `${x}px ${y}px`;
    frame.style.height = `${height}px`;
    if (problem) element.append(Object.assign(document.createElement("p"), { textContent: problem }));
    bottoms[column] = y + LABEL_HEIGHT + height + GAP;
    return { name, x, y: top + y + LABEL_HEIGHT, width, height, problem };
  });
  Object.assign(sheet.style, { width: `${GAP + count * (width + GAP)}px`, height: `${Math.max(...bottoms)}px` });
  return places;
}

function navigation(): HTMLElement {
  const list = document.createElement("nav");
  for (const name of GROUPS) {
    const line = list.appendChild(document.createElement("p"));
    line.append(name);
    for (const variant of VARIANTS) line.append(Object.assign(document.createElement("a"), { href: `/#${name}/${variant}`, textContent: variant, onclick: () => setTimeout(() => location.reload()) }));
  }
  return list;
}
