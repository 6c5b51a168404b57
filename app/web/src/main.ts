// The start of the page.

import { mount } from "svelte";
import App from "./App.svelte";
import { page, start } from "./state/page.svelte.ts";

const stream = new Worker(new URL("./workers/stream.ts", import.meta.url), { type: "module", name: "stream" });
stream.onerror = () => page.toast("The page did not load as a whole. Please reload it.");

// A part that is loaded when it is needed: not there without a network, or any more since the server has a newer page.
addEventListener("vite:preloadError", () => page.toast("That part of the page could not be loaded. Reload the page once you are online."));

mount(App, { target: document.body });
void start(stream);
if (import.meta.env.PROD && "serviceWorker" in navigator) {
  // A page without one works, too, as long as there is a network.
  navigator.serviceWorker.register("/sw.js").catch((error: unknown) => console.info("khala", "The page will not be there without a network.", error));
}
