// Starts the page. Its messages are loaded.

import { mount } from "svelte";
import App from "./App.svelte";
import { tellShownPath } from "./browser/shown-path.ts";
import { m } from "./i18n/messages.ts";
import { page, start } from "./state/page.svelte.ts";

const stream = new Worker(new URL("./workers/stream.ts", import.meta.url), { type: "module", name: "stream" });
stream.onerror = () => page.toast(m.part_didnt_load());

// A lazily loaded part is missing offline, or after the server was updated.
addEventListener("vite:preloadError", () => page.toast(m.part_couldnt_load()));

mount(App, { target: document.body });
void start(stream);
if (import.meta.env.PROD && "serviceWorker" in navigator) {
  tellShownPath(navigator.serviceWorker);
  // The page works without a service worker while it is online.
  navigator.serviceWorker.register("/sw.js").catch((error: unknown) => console.info("khala", "The service worker could not be registered, so the page needs a network.", error));
}
