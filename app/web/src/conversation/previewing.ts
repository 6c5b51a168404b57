// HTML in an answer, shown at the person's wish in a frame that is shut off from this page.

import { mount, unmount } from "svelte";

const LONGEST = 200_000;
const shown = new Map<Element, () => void>();

/** Whether there is something to look at in code of this language. */
export function isPreviewable(language: string, code: string): boolean {
  return language.toLowerCase() === "html" && code.trim() !== "" && code.length <= LONGEST;
}

/** Show what the code in this frame makes below it, or hide that again. */
export async function togglePreview(frame: Element): Promise<void> {
  if (shown.has(frame)) return endPreview(frame);
  const html = frame.querySelector("code")?.textContent ?? "";
  const { default: Preview } = await import("../session/Preview.svelte");
  if (shown.has(frame) || !frame.isConnected) return;
  const preview = mount(Preview, { target: frame, props: { html } });
  shown.set(frame, () => void unmount(preview));
}

export function endPreview(frame: Element): void {
  shown.get(frame)?.();
  shown.delete(frame);
}
