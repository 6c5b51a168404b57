import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";

const ORIGIN = "https://khala.test";

/** Caches as a browser has them, by name and path. */
class Caches {
  kept = new Map<string, Map<string, string>>();

  open = (name: string) => {
    const cache = this.kept.get(name) ?? this.kept.set(name, new Map()).get(name);
    if (!cache) throw new Error(name);
    const pathOf = (what: string | Request) => new URL(typeof what === "string" ? what : what.url, ORIGIN).pathname;
    const add = async (what: string | Request) => {
      const response = await fetch(what);
      if (!response.ok) throw new TypeError("not ok");
      cache.set(pathOf(what), await response.text());
    };
    return Promise.resolve({
      match: (what: string | Request) => Promise.resolve(cache.has(pathOf(what)) ? new Response(cache.get(pathOf(what))) : undefined),
      put: async (what: string, response: Response) => void cache.set(pathOf(what), await response.text()),
      add,
      addAll: (all: string[]) => Promise.all(all.map(add)),
      keys: () => Promise.resolve([...cache.keys()].map((path) => ({ url: ORIGIN + path }))),
      delete: ({ url }: { url: string }) => Promise.resolve(cache.delete(pathOf(url))),
    });
  };
  keys = () => Promise.resolve([...this.kept.keys()]);
  delete = (name: string) => Promise.resolve(this.kept.delete(name));
}

type Shell = { version: string; first: string[]; languages: Record<string, string>; every: string[]; shown: string[] };
const ONE: Shell = { version: "one", first: ["/web/assets/a-1.js"], languages: {}, every: ["/web/assets/a-1.js", "/web/assets/lazy-1.js"], shown: ["/web/icon.svg"] };
const TWO: Shell = { version: "two", first: ["/web/assets/a-2.js"], languages: {}, every: ["/web/assets/a-2.js", "/web/assets/same.js"], shown: ["/web/icon.svg"] };

let caches: Caches;
let network: (path: string) => Promise<Response>;
let asked: string[];

beforeEach(() => {
  caches = new Caches();
  asked = [];
  network = (path) => Promise.resolve(new Response(`net ${path}`));
  vi.stubGlobal("caches", caches);
  vi.stubGlobal("location", new URL(ORIGIN));
  vi.stubGlobal("Request", class extends Request {
    constructor(input: string | URL | Request, init?: RequestInit) {
      super(typeof input === "string" ? new URL(input, ORIGIN) : input, init);
    }
  });
  vi.stubGlobal("fetch", (what: string | Request) => {
    const { pathname } = new URL(typeof what === "string" ? what : what.url, ORIGIN);
    asked.push(pathname);
    return network(pathname);
  });
});
afterEach(() => vi.unstubAllGlobals());

/** The worker of a version, as a browser would run it. */
async function version(shell: Shell) {
  const listeners: Record<string, (event: unknown) => void> = {};
  vi.resetModules();
  vi.stubGlobal("__SHELL__", shell);
  vi.stubGlobal("self", { addEventListener: (type: string, listen: (event: unknown) => void) => (listeners[type] = listen), clients: { claim: () => Promise.resolve() } });
  await import("./sw.ts");
  const happen = async (type: string) => {
    let done: Promise<unknown> = Promise.resolve();
    listeners[type]?.({ waitUntil: (promise: Promise<unknown>) => (done = promise) });
    await done;
  };
  /** What is answered, or null where the worker keeps out of it. */
  const get = async (path: string, mode = "navigate", method = "GET") => {
    const answers: Promise<Response>[] = [];
    listeners.fetch?.({ request: { url: new URL(path, ORIGIN).href, mode, method }, respondWith: (response: Promise<Response>) => answers.push(response) });
    const answer = await answers[0];
    return answer ? answer.text() : null;
  };
  return { install: () => happen("install"), activate: () => happen("activate"), get };
}

const offline = () => Promise.reject(new TypeError("offline"));

describe("the service worker", () => {
  test("shows the page without a network, with the files that it needs to start", async () => {
    const worker = await version(ONE);
    await worker.install();
    network = offline;
    expect(await worker.get("/")).toBe("net /");
    expect(await worker.get("/t/some-chat")).toBe("net /");
    expect(await worker.get("/web/assets/a-1.js", "cors")).toBe("net /web/assets/a-1.js");
    expect(await worker.get("/web/icon.svg", "no-cors")).toBe("net /web/icon.svg");
  });

  test("shows the server's page where it can, and the kept one where the server fails", async () => {
    const worker = await version(ONE);
    await worker.install();
    network = (path) => Promise.resolve(new Response(`newer ${path}`));
    expect(await worker.get("/t/x")).toBe("newer /t/x");
    network = () => Promise.resolve(new Response("bad gateway", { status: 502 }));
    expect(await worker.get("/t/x")).toBe("net /");
  });

  test("does not let a slow network keep the page back", async () => {
    vi.useFakeTimers();
    const worker = await version(ONE);
    await worker.install();
    network = () => new Promise(() => undefined);
    const page = worker.get("/");
    await vi.advanceTimersByTimeAsync(5000);
    expect(await page).toBe("net /");
    vi.useRealTimers();
  });

  test("asks for a file once", async () => {
    const worker = await version(ONE);
    await worker.get("/web/assets/lazy-1.js", "cors");
    await worker.get("/web/assets/lazy-1.js", "cors");
    expect(asked).toEqual(["/web/assets/lazy-1.js"]);
  });

  test("does not keep a file that is not there", async () => {
    const worker = await version(ONE);
    network = () => Promise.resolve(new Response("gone", { status: 404 }));
    expect(await worker.get("/web/assets/lazy-1.js", "cors")).toBe("gone");
    expect(caches.kept.get("khala-files")?.size).toBe(0);
  });

  test.each([
    ["/api/threads", "cors", "GET"],
    ["/api/blobs/x", "navigate", "GET"],
    ["/v1/models", "cors", "GET"],
    ["/preview", "navigate", "GET"],
    ["/autopilot/detail/x", "cors", "GET"],
    ["/", "navigate", "POST"],
    ["/sw.js", "same-origin", "GET"],
    ["https://elsewhere.test/", "navigate", "GET"],
  ])("keeps out of %s (%s, %s)", async (path, mode, method) => {
    const worker = await version(ONE);
    expect(await worker.get(path, mode, method)).toBeNull();
    expect(asked).toEqual([]);
  });

  test("keeps the files of an older version until no tab needs them, and drops them then", async () => {
    const one = await version(ONE);
    await one.install();
    await one.activate();
    await one.get("/web/assets/lazy-1.js", "cors");
    const two = await version(TWO);
    await two.install();
    network = offline;
    expect(await one.get("/web/assets/lazy-1.js", "cors")).toBe("net /web/assets/lazy-1.js");
    await two.activate();
    expect([...caches.kept.keys()]).toEqual(["khala-files", "khala-shell-two"]);
    expect([...(caches.kept.get("khala-files")?.keys() ?? [])]).toEqual(["/web/assets/a-2.js"]);
  });

  test("leaves caches that are not its own alone, and files that it has are not fetched again", async () => {
    await caches.open("another");
    await (await caches.open("khala-files")).put("/web/assets/a-2.js", new Response("kept"));
    const two = await version(TWO);
    await two.install();
    await two.activate();
    expect(caches.kept.has("another")).toBe(true);
    expect(asked).toEqual(["/", "/web/icon.svg"]);
  });

  test("is not installed where a file is missing", async () => {
    const worker = await version(ONE);
    network = (path) => Promise.resolve(new Response("", { status: path.startsWith("/web") ? 404 : 200 }));
    await expect(worker.install()).rejects.toThrow();
  });
});
