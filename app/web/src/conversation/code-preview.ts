// Previews of HTML and components in an answer, in a sandboxed frame, on request.

import { mount, unmount } from "svelte";

import { documentOf } from "../session/components.ts";

const MAX_PREVIEW_CHARACTERS = 200_000;
const shown = new Map<Element, () => void>();

/** The HTML document for code of this language (as from `languageOf`); null if the code can't be previewed. */
export function previewDocument(language: string, code: string): string | null {
  if (code.trim() === "" || code.length > MAX_PREVIEW_CHARACTERS) return null;
  return language.toLowerCase() === "html" ? code : (documentOf(language, code)[0] ?? null);
}

/** Shows or hides the preview below the code in this frame. */
export async function togglePreview(frame: Element): Promise<void> {
  if (shown.has(frame)) return endPreview(frame);
  const html = previewDocument(frame.querySelector(".language")?.textContent ?? "", frame.querySelector("code")?.textContent ?? "");
  if (html === null) return;
  const { default: ComponentPreview } = await import("../session/ComponentPreview.svelte");
  if (shown.has(frame) || !frame.isConnected) return;
  const preview = mount(ComponentPreview, { target: frame, props: { html } });
  shown.set(frame, () => void unmount(preview));
}

export function endPreview(frame: Element): void {
  shown.get(frame)?.();
  shown.delete(frame);
}
