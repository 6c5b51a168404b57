// The service worker: makes the page available offline, serves its files from the cache, and shows notifications.
//
// A new version activates once no tab of an old one is open. Until then the files of both are cached, so that open tabs find
// theirs after the server has dropped them. Navigations go to the network first, so a page that is loaded meanwhile is current.

import { chooseLocale } from "./i18n/locale.ts";
import { openChat, showPush } from "./push/push-events.ts";
import type { NotificationScope, PushMessage } from "./push/push-events.ts";

/**
 * Injected by the build: its `version`, the `first` files that the page needs to start, the file of each of the `languages`,
 * `every` file, and those that are `shown` whose names have no hash, as paths.
 */
declare const __SHELL__: { readonly version: string; readonly first: readonly string[]; readonly languages: Readonly<Record<string, string>>; readonly every: readonly string[]; readonly shown: readonly string[] };
const { version, first, languages, every, shown } = __SHELL__;

// The part of a service worker's scope that is used; TypeScript's worker types can't be combined with those of pages.
interface Waiting extends Event {
  waitUntil(done: Promise<unknown>): void;
}
interface Fetching extends Waiting {
  readonly request: Request;
  respondWith(response: Promise<Response>): void;
}
interface Pushed extends Waiting {
  readonly data: { json(): unknown } | null;
}
interface Clicked extends Waiting {
  readonly notification: Notification;
}
interface Scope extends NotificationScope {
  readonly clients: NotificationScope["clients"] & { claim(): Promise<void> };
  addEventListener(type: "install" | "activate", listen: (event: Waiting) => void): void;
  addEventListener(type: "fetch", listen: (event: Fetching) => void): void;
  addEventListener(type: "push", listen: (event: Pushed) => void): void;
  addEventListener(type: "notificationclick", listen: (event: Clicked) => void): void;
}
declare const self: Scope;

const PREFIX = "khala-";
/** The cache of this version's page, for offline use. */
const SHELL = `${PREFIX}shell-${version}`;
/** File names contain a hash of their content, so all versions share one cache. */
const FILES = `${PREFIX}files`;
/** The timeout of a navigation before the cached page is shown, in ms. */
const PATIENCE_MS = 5000;

self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(activate()));
self.addEventListener("fetch", (event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  if (request.method !== "GET" || origin !== location.origin) return;
  if (request.mode === "navigate" && isPage(pathname)) event.respondWith(page(request));
  else if (shown.includes(pathname)) event.respondWith(picture(request));
  else if (pathname.startsWith("/web/assets/")) event.respondWith(file(request));
});

self.addEventListener("push", (event) => {
  if (event.data !== null) event.waitUntil(showPush(self, event.data.json() as PushMessage));
});
self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  event.waitUntil(openChat(self, (event.notification.data as { path: string }).path));
});

/** Everything else (`/api`, `/v1`, `/preview`, …) always goes to the network. */
function isPage(pathname: string): boolean {
  return pathname === "/" || pathname.startsWith("/t/");
}

/** The messages in the language of the browser. Those in a language that the person chose are cached when the page loads them. */
function messages(): string[] {
  const path = languages[chooseLocale(null, navigator.languages)];
  return path === undefined ? [] : [path];
}

async function install(): Promise<void> {
  const files = await caches.open(FILES);
  const missing = await Promise.all([...first, ...messages()].map(async (path) => ((await files.match(path)) ? [] : [path])));
  await files.addAll(missing.flat());
  const shell = await caches.open(SHELL);
  await shell.addAll(["/", ...shown].map((path) => new Request(path, { cache: "reload" })));
}

/** No tab of an older version is open: delete what only that version needed. */
async function activate(): Promise<void> {
  const names = await caches.keys();
  await Promise.all(names.filter((name) => name.startsWith(PREFIX) && name !== SHELL && name !== FILES).map((name) => caches.delete(name)));
  const files = await caches.open(FILES);
  const needed = new Set(every);
  const kept = await files.keys();
  await Promise.all(kept.filter(({ url }) => !needed.has(new URL(url).pathname)).map((request) => files.delete(request)));
  await self.clients.claim();
}

/** The server's page if it arrives in time, else the cached one. An error response (5xx) counts as no page. */
async function page(request: Request): Promise<Response> {
  const fresh = fetch(request).catch((error: unknown) => error as Error);
  const late = new Promise<null>((resolve) => setTimeout(() => resolve(null), PATIENCE_MS));
  const soon = await Promise.race([fresh, late]);
  if (soon instanceof Response && soon.status < 500) return soon;
  const kept = await (await caches.open(SHELL)).match("/");
  if (kept) return kept;
  const last = await fresh;
  if (last instanceof Response) return last;
  throw last;
}

/** The picture of this version's page. */
async function picture(request: Request): Promise<Response> {
  return (await (await caches.open(SHELL)).match(request.url)) ?? fetch(request);
}

async function file(request: Request): Promise<Response> {
  const files = await caches.open(FILES);
  const kept = await files.match(request.url);
  if (kept) return kept;
  const response = await fetch(request);
  // A captive portal or proxy may answer with anything; cache only what looks like a file of the page.
  const isFile = response.status === 200 && !response.redirected && !response.headers.get("Content-Type")?.startsWith("text/html");
  if (isFile && new URL(request.url).search === "") await files.put(request.url, response.clone());
  return response;
}

