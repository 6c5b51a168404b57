import { afterEach, describe, expect, test, vi } from "vitest";

import { newId, newKey } from "./ids.ts";
import { ApiError, NetworkError, retrySignal, backoffMs, downloadBlob, request, requestEvents, withRetry, isRequestError, isTransient, retryDelayMs, sleep, upload, retryNow } from "./requests.ts";
import type { ReceivedRequest } from "./testing/server.ts";
import { startServer } from "./testing/server.ts";

const open: (() => Promise<void>)[] = [];
afterEach(async () => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
  await Promise.all(open.splice(0).map((close) => close()));
});

async function server(answer: Parameters<typeof startServer>[0]) {
  const one = await startServer(answer);
  open.push(one.close);
  return one;
}

/** A server that gives all the same answer. */
function always(status: number, body: string, headers: Record<string, string | number> = {}) {
  return server((_, response) => {
    response.writeHead(status, headers);
    response.end(body);
  });
}

const failure = async (promise: Promise<unknown>): Promise<unknown> => promise.then(() => null, (error: unknown) => error); // prettier-ignore

describe("a call", () => {
  test("sends JSON and the keys in headers, and gives the JSON that comes", async () => {
    const { url, asked } = await always(200, '{"a":1}');
    const keys = { anonKey: "k1", shareKey: "k2", token: "t" };
    expect(await request("POST", `${url}/api/x`, { body: { text: "é" }, keys })).toEqual({ a: 1 });
    const [one] = asked as [ReceivedRequest];
    expect(one).toMatchObject({ method: "POST", path: "/api/x", body: '{"text":"é"}' });
    expect(one.headers).toMatchObject({ "content-type": "application/json", "x-anon-key": "k1", "x-share-key": "k2", authorization: "Bearer t" });
  });

  test("with a placeholder for a token is refused as the server would, and is not sent", async () => {
    const { url, asked } = await always(200, "null");
    const error = await failure(request("GET", url, { keys: { token: "khala_…" } }));
    expect(error).toMatchObject({ status: 401, code: "unauthorized" });
    expect((error as ApiError).message).toContain('contains "…"');
    expect(asked).toHaveLength(0);
  });

  test("without keys and body sends none", async () => {
    const { url, asked } = await always(200, "null");
    expect(await request("GET", url)).toBeNull();
    expect(Object.keys(asked[0]?.headers ?? {})).not.toContain("x-anon-key");
    expect(asked[0]?.headers["content-type"]).toBeUndefined();
  });

  test("gives null for an answer without content", async () => {
    const { url } = await always(204, "");
    expect(await request("DELETE", url)).toBeNull();
  });

  test("tells the server's no with its code, its places and when to try again", async () => {
    const problem = { title: "Rate limited", status: 429, code: "rate_limited", detail: "Slower.", errors: [{ path: "text", message: "Too much." }] };
    const { url } = await always(429, JSON.stringify(problem), { "Retry-After": 7 });
    const error = await failure(request("GET", url));
    expect(error).toBeInstanceOf(ApiError);
    expect(error).toMatchObject({ status: 429, code: "rate_limited", message: "Slower.", retryAfter: 7, errors: problem.errors });
    expect(isTransient(error)).toBe(false);
  });

  test("fails by the server's no or its silence; what we did wrong is neither", () => {
    expect(isRequestError(new ApiError(403, { code: "forbidden" }))).toBe(true);
    expect(isRequestError(new NetworkError("The server could not be reached."))).toBe(true);
    expect(isRequestError(new TypeError("x is not a function"))).toBe(false);
  });

  test("takes a proxy's page for a no that passes", async () => {
    const { url } = await always(502, "<h1>Bad gateway</h1>");
    const error = await failure(request("GET", url));
    expect(error).toMatchObject({ status: 502, code: "unavailable", retryAfter: null });
    expect(isTransient(error)).toBe(true);
  });

  test("takes half an answer, a cut connection and a server that is gone as unreachable", async () => {
    const half = await always(200, '{"a":');
    expect(await failure(request("GET", half.url))).toBeInstanceOf(NetworkError);
    const cut = await server((_, response) => {
      response.writeHead(200, { "Content-Length": 100 });
      response.write("{");
      response.destroy();
    });
    expect(await failure(request("GET", cut.url))).toBeInstanceOf(NetworkError);
    const gone = await startServer(() => undefined);
    await gone.close();
    const error = await failure(request("GET", gone.url));
    expect(error).toBeInstanceOf(NetworkError);
    expect(isTransient(error)).toBe(true);
  });

  test("that is called off says so, and is not tried again", async () => {
    const off = new AbortController();
    const { url } = await server(() => off.abort());
    const wait = vi.fn(() => Promise.resolve());
    const error = await failure(withRetry(() => request("GET", url, { signal: off.signal }), { wait }));
    expect(error).toMatchObject({ name: "AbortError" });
    expect(wait).not.toHaveBeenCalled();
  });
});

describe("files", () => {
  test("are given as they are kept, or refused", async () => {
    const kept = await always(200, "the bytes", { "Content-Type": "text/plain" });
    expect(await (await downloadBlob(kept.url)).text()).toBe("the bytes");
    const lost = await always(404, '{"code":"blob_not_found"}');
    expect(await failure(downloadBlob(lost.url))).toMatchObject({ code: "blob_not_found" });
  });

  test("are sent as they are", async () => {
    const { url, asked } = await always(201, '{"blobId":"b"}');
    const blob = await upload(`${url}/api/threads/t/blobs?name=a.txt`, new Blob(["abc"], { type: "text/plain" }), { keys: { anonKey: "k" } });
    expect(blob.blobId).toBe("b");
    expect(asked[0]).toMatchObject({ method: "POST", body: "abc" });
    expect(asked[0]?.headers).toMatchObject({ "content-type": "text/plain", "x-anon-key": "k" });
  });

  test("tell how far they are where the platform knows", async () => {
    const requests = stubXhr();
    const shares: number[] = [];
    const sent = upload("/api/x", new Blob(["abc"]), { keys: { shareKey: "s" }, onProgress: (share) => shares.push(share) });
    const [request] = requests;
    if (request === undefined) throw new Error("Nothing was sent.");
    expect(request.headers).toMatchObject({ "X-Share-Key": "s", "Content-Type": "application/octet-stream" });
    request.upload.onprogress?.({ lengthComputable: true, loaded: 1, total: 4 });
    request.finish(201, '{"blobId":"b"}');
    expect((await sent).blobId).toBe("b");
    expect(shares).toEqual([0.25]);
  });

  test("that are too large, cut off or called off on the way fail as calls do", async () => {
    const requests = stubXhr();
    const progress = (): void => undefined;
    const off = new AbortController();
    const all = [upload("/x", new Blob(["a"]), { onProgress: progress }), upload("/x", new Blob(["b"]), { onProgress: progress }), upload("/x", new Blob(["c"]), { onProgress: progress, signal: off.signal })];
    const failures = Promise.all(all.map(failure));
    requests[0]?.finish(413, '{"code":"payload_too_large"}');
    requests[1]?.onerror?.();
    off.abort();
    expect(await failures).toMatchObject([{ code: "payload_too_large" }, { name: "NetworkError" }, { name: "AbortError" }]);
  });
});

describe("insisting", () => {
  const wait = (): Promise<void> => Promise.resolve();

  test("asks until there is a yes", async () => {
    let asked = 0;
    const ask = (): Promise<string> => (++asked < 4 ? Promise.reject(new NetworkError("")) : Promise.resolve("yes"));
    expect(await withRetry(ask, { wait })).toBe("yes");
    expect(asked).toBe(4);
  });

  test("takes a no for a no, and too many failures for one", async () => {
    const no = vi.fn(() => Promise.reject(new ApiError(403, {})));
    expect(await failure(withRetry(no, { wait }))).toBeInstanceOf(ApiError);
    expect(no).toHaveBeenCalledTimes(1);
    const never = vi.fn(() => Promise.reject(new ApiError(503, {})));
    expect(await failure(withRetry(never, { wait, maxAttempts: 3 }))).toMatchObject({ status: 503 });
    expect(never).toHaveBeenCalledTimes(3);
  });

  test("waits longer each time, at least as long as the server says, within bounds", () => {
    for (const random of [0, 0.5, 0.999]) {
      const pauses = [0, 1, 2, 3, 4, 5, 99].map((attempt) => backoffMs(attempt, random));
      expect(pauses.every((pause) => pause >= 250 && pause <= 8000)).toBe(true);
      expect(pauses).toEqual(pauses.toSorted((one, other) => one - other));
    }
    expect(retryDelayMs(0, new ApiError(503, {}, 12))).toBe(12_000);
    expect(retryDelayMs(0, new ApiError(503, {}, 999))).toBe(30_000);
    expect(retryDelayMs(0, new NetworkError(""))).toBeLessThanOrEqual(500);
  });
});

test("a pause ends by itself, or when there is reason to try at once", async () => {
  vi.useFakeTimers();
  const removed = vi.spyOn(retrySignal, "removeEventListener");
  const first = sleep(1000);
  vi.advanceTimersByTime(1000);
  await first;
  const second = sleep(1_000_000);
  retryNow();
  await second;
  expect(removed).toHaveBeenCalledTimes(2);
  expect(vi.getTimerCount()).toBe(0);
});

test("ids are UUIDs of version 7 that are ordered by time, and keys have 256 bits", () => {
  vi.useFakeTimers();
  const ids = Array.from({ length: 50 }, () => (vi.advanceTimersByTime(1), newId()));
  for (const id of ids) expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  expect(ids).toEqual(ids.toSorted());
  expect(new Set(ids).size).toBe(50);
  expect(newKey()).toMatch(/^[0-9a-f]{64}$/);
  expect(newKey()).not.toBe(newKey());
});

/** XMLHttpRequest as far as uploads need it; those that were made. */
function stubXhr() {
  const made: FakeRequest[] = [];
  class FakeRequest {
    status = 0;
    responseText = "";
    timeout = 0;
    readonly headers: Record<string, string> = {};
    readonly upload: { onprogress: ((event: { lengthComputable: boolean; loaded: number; total: number }) => void) | null } = { onprogress: null };
    onload: (() => void) | null = null;
    onerror: (() => void) | null = null;
    onabort: (() => void) | null = null;

    constructor() {
      made.push(this);
    }

    open(): void {
      this.status = 0;
    }

    setRequestHeader(name: string, value: string): void {
      this.headers[name] = value;
    }

    getResponseHeader(): null {
      return null;
    }

    send(): void {
      this.status = 0;
    }

    abort(): void {
      this.onabort?.();
    }

    finish(status: number, text: string): void {
      this.status = status;
      this.responseText = text;
      this.onload?.();
    }
  }
  vi.stubGlobal("XMLHttpRequest", FakeRequest);
  return made;
}

describe("a stream of events", () => {
  test("passes on each event as it comes, however it is cut, and leaves out comments", async () => {
    const stream = 'data: {"a":"é"}\n\n: ping\n\ndata: {"b":2}\n\n';
    const { url, asked } = await server((_, response) => {
      response.writeHead(200, { "Content-Type": "text/event-stream" });
      const bytes = [...new TextEncoder().encode(stream)];
      const next = (): void => {
        const byte = bytes.shift();
        if (byte === undefined) return response.end();
        response.write(Uint8Array.of(byte));
        setTimeout(next);
      };
      next();
    });
    const events: unknown[] = [];
    await requestEvents(`${url}/api/x`, { body: { c: 3 }, keys: { token: "t" } }, (event) => events.push(event));
    expect(events).toEqual([{ a: "é" }, { b: 2 }]);
    expect(asked[0]).toMatchObject({ method: "POST", path: "/api/x", body: '{"c":3}', headers: { authorization: "Bearer t", "content-type": "application/json" } });
  });

  test("tells a refusal, and a stream that breaks off", async () => {
    const { url } = await always(403, JSON.stringify({ code: "forbidden", detail: "No." }));
    expect(await failure(requestEvents(url, { body: {} }, () => undefined))).toMatchObject({ status: 403, code: "forbidden", message: "No." });
    const broken = await server((_, response) => {
      response.writeHead(200, { "Content-Type": "text/event-stream" });
      response.write("data: {}\n\n");
      setTimeout(() => response.destroy(), 20);
    });
    expect(await failure(requestEvents(broken.url, { body: {} }, () => undefined))).toBeInstanceOf(NetworkError);
  });
});
