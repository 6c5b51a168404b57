// The service worker: the page itself is there without a network, and its files come from the cache.
//
// A new version waits until no tab of an old one is open: until then the files of both are kept, so that open tabs find theirs
// though the server has them no more. A page that is loaded meanwhile is the server's newest all the same, because navigations go
// to the network first.

/** Made at build: `version` of this very build, `first` what the page needs to start, `every` file of it, as paths. */
declare const __SHELL__: { readonly version: string; readonly first: readonly string[]; readonly every: readonly string[] };
const { version, first, every } = __SHELL__;

// What of its own scope a service worker needs; the library of types for workers can't be had beside that of pages.
interface Waiting extends Event {
  waitUntil(done: Promise<unknown>): void;
}
interface Fetching extends Waiting {
  readonly request: Request;
  respondWith(response: Promise<Response>): void;
}
interface Scope {
  readonly clients: { claim(): Promise<void> };
  addEventListener(type: "install" | "activate", listen: (event: Waiting) => void): void;
  addEventListener(type: "fetch", listen: (event: Fetching) => void): void;
}
declare const self: Scope;

const PREFIX = "khala-";
/** Where the page of this version is, for when there is no network. */
const SHELL = `${PREFIX}shell-${version}`;
/** Names of files change with what is in them, so all versions share a cache. */
const FILES = `${PREFIX}files`;
/** How long the network may take with a page before the cached one is shown, in ms. */
const PATIENCE_MS = 5000;

self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(activate()));
self.addEventListener("fetch", (event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  if (request.method !== "GET" || origin !== location.origin) return;
  if (request.mode === "navigate" && isPage(pathname)) event.respondWith(page(request));
  else if (pathname.startsWith("/web/assets/")) event.respondWith(file(request));
});

/** Everything else (`/api`, `/v1`, `/preview` …) is the network's alone. */
function isPage(pathname: string): boolean {
  return pathname === "/" || pathname.startsWith("/t/");
}

async function install(): Promise<void> {
  const files = await caches.open(FILES);
  const missing = await Promise.all(first.map(async (path) => ((await files.match(path)) ? [] : [path])));
  await files.addAll(missing.flat());
  const shell = await caches.open(SHELL);
  await shell.add(new Request("/", { cache: "reload" }));
}

/** No tab of an older version is open any more: what only it needed goes. */
async function activate(): Promise<void> {
  const names = await caches.keys();
  await Promise.all(names.filter((name) => name.startsWith(PREFIX) && name !== SHELL && name !== FILES).map((name) => caches.delete(name)));
  const files = await caches.open(FILES);
  const needed = new Set(every);
  const kept = await files.keys();
  await Promise.all(kept.filter(({ url }) => !needed.has(new URL(url).pathname)).map((request) => files.delete(request)));
  await self.clients.claim();
}

/** The server's page if it comes in time, else the one that was kept; the server's "no" to a page is no page either. */
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

async function file(request: Request): Promise<Response> {
  const files = await caches.open(FILES);
  const kept = await files.match(request.url);
  if (kept) return kept;
  const response = await fetch(request);
  // Whoever stands between (a login page of a network, say) may answer anything; only what looks like a file of the page is kept.
  const isFile = response.status === 200 && !response.redirected && !response.headers.get("Content-Type")?.startsWith("text/html");
  if (isFile && new URL(request.url).search === "") await files.put(request.url, response.clone());
  return response;
}

export {}; // a module to the compiler, so that its names are its own; a classic script when it is built
