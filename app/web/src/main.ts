// Entry point of the page.

import { mount } from "svelte";
import App from "./App.svelte";
import { page, start } from "./state/page.svelte.ts";

const stream = new Worker(new URL("./workers/stream.ts", import.meta.url), { type: "module", name: "stream" });
stream.onerror = () => page.toast("Part of the page didn’t load. Reload the page.");

// A lazily loaded part is missing offline, or after the server was updated.
addEventListener("vite:preloadError", () => page.toast("Couldn’t load this part of the page. Check your connection, then reload."));

mount(App, { target: document.body });
void start(stream);
if (import.meta.env.PROD && "serviceWorker" in navigator) {
  // The page works without a service worker while it is online.
  navigator.serviceWorker.register("/sw.js").catch((error: unknown) => console.info("khala", "The service worker could not be registered, so the page needs a network.", error));
}
