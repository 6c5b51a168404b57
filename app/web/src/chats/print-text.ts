// Prints a text in Markdown instead of the page.

import { mount, tick, unmount } from "svelte";

import PrintView from "./PrintView.svelte";

/** Waits at most so long, in ms, for the parts of the page that draw Markdown. */
const DRAWING_MS = 3000;

/** Print the text. Ends when the browser's dialog has closed. */
export async function printText(text: string): Promise<void> {
  const view = mount(PrintView, { target: document.body, props: { text } });
  try {
    await tick();
    await drawn();
    const closed = new Promise((resolve) => addEventListener("afterprint", resolve, { once: true }));
    window.print();
    await closed;
  } finally {
    await unmount(view);
  }
}

/** Wait until the text is drawn with its formats, or for `DRAWING_MS`. */
async function drawn(): Promise<void> {
  const end = performance.now() + DRAWING_MS;
  while (document.querySelector(".print-view .plain") !== null && performance.now() < end) await new Promise(requestAnimationFrame);
}
