// The start of the page.

import { mount } from "svelte";
import App from "./App.svelte";
import { page, start } from "./state/page.svelte.ts";

const stream = new Worker(new URL("./workers/stream.ts", import.meta.url), { type: "module", name: "stream" });
stream.onerror = () => page.toast("The page did not load as a whole. Please reload it.");

mount(App, { target: document.body });
void start(stream);
if (import.meta.env.PROD && "serviceWorker" in navigator) void navigator.serviceWorker.register("/sw.js").catch(() => undefined); // a page without one works, too
