// HTML and components in an answer, shown at the person's wish in a frame that is shut off from this page.

import { mount, unmount } from "svelte";

import { documentOf } from "../session/components.ts";

const LONGEST = 200_000;
const shown = new Map<Element, () => void>();

/** The document that code of this language, as `languageOf` says it, makes; null if there is nothing to look at. */
export function previewOf(language: string, code: string): string | null {
  if (code.trim() === "" || code.length > LONGEST) return null;
  return language.toLowerCase() === "html" ? code : (documentOf(language, code)[0] ?? null);
}

/** Show what the code in this frame makes below it, or hide that again. */
export async function togglePreview(frame: Element): Promise<void> {
  if (shown.has(frame)) return endPreview(frame);
  const html = previewOf(frame.querySelector(".language")?.textContent ?? "", frame.querySelector("code")?.textContent ?? "");
  if (html === null) return;
  const { default: Preview } = await import("../session/Preview.svelte");
  if (shown.has(frame) || !frame.isConnected) return;
  const preview = mount(Preview, { target: frame, props: { html } });
  shown.set(frame, () => void unmount(preview));
}

export function endPreview(frame: Element): void {
  shown.get(frame)?.();
  shown.delete(frame);
}
