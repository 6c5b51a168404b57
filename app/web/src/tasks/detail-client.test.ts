import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ApiError, NetworkError } from "@khala/client";
import type { BlobRef } from "@khala/client";
import type { ToDetail, FromDetail } from "../workers/detail.messages.ts";
import { DetailClient, type DetailPort, PREFETCH_DELAY_MS } from "./detail-client.ts";

const BLOB: BlobRef = { blobId: "a", size: 9, sha256: "ab", mediaType: "text/plain", preview: "a long beginning" };

let ports: (DetailPort & { heard: ToDetail[]; isEnded: boolean })[];
let details: DetailClient;

beforeEach(() => {
  ports = [];
  details = new DetailClient(() => {
    const heard: ToDetail[] = [];
    const port = { heard, isEnded: false, onmessage: null, onerror: null, postMessage: (one: ToDetail) => void heard.push(one), terminate: () => void (port.isEnded = true) };
    ports.push(port);
    return port;
  });
});
afterEach(() => void vi.useRealTimers());

const tell = (data: unknown) => ports.at(-1)?.onmessage?.({ data } as MessageEvent<FromDetail>);

test("an answer goes to who asked, and a no comes as the server said it", async () => {
  const [one, other] = [details.request("open", BLOB, {}, {}), details.request("more", BLOB, { anonKey: "K" }, { from: 7 })];
  expect(ports[0]?.heard).toMatchObject([{ type: "request", id: 1, kind: "open", blob: { preview: "a" } }, { id: 2, kind: "more", from: 7, keys: { anonKey: "K" } }]);
  tell({ id: 2, error: { message: "No.", status: 403, code: "forbidden" } });
  tell({ id: 1, result: { kind: "file" } });
  expect(await one).toEqual({ kind: "file" });
  await expect(other).rejects.toMatchObject({ constructor: ApiError, status: 403, code: "forbidden", message: "No." });
});

test("who does not wait any more says so to the worker", async () => {
  const abort = new AbortController();
  const asked = details.request("open", BLOB, {}, {}, abort.signal);
  abort.abort();
  await expect(asked).rejects.toMatchObject({ name: "AbortError" });
  expect(ports[0]?.heard.at(-1)).toEqual({ type: "abort", id: 1 });
  tell({ id: 1, result: { kind: "file" } });
  await expect(details.request("open", BLOB, {}, {}, abort.signal)).rejects.toMatchObject({ name: "AbortError" });
  expect(ports[0]?.heard.length).toBe(2);
});

test("when the worker dies nobody waits for ever, and the next question starts another", async () => {
  const asked = details.request("open", BLOB, {}, {});
  ports[0]?.onerror?.({} as ErrorEvent);
  await expect(asked).rejects.toBeInstanceOf(NetworkError);
  const again = details.request("open", BLOB, {}, {});
  tell({ id: 2, result: { kind: "file" } });
  expect(await again).toEqual({ kind: "file" });
  expect([ports.length, ports[0]?.isEnded]).toEqual([2, true]);
});

test("what somebody rests on is asked for after a moment, and not if they only pass by", async () => {
  vi.useFakeTimers();
  details.prefetch([BLOB], {})();
  vi.advanceTimersByTime(PREFETCH_DELAY_MS);
  expect(ports).toEqual([]);
  const callOff = details.prefetch([BLOB], {});
  vi.advanceTimersByTime(PREFETCH_DELAY_MS - 1);
  expect(ports).toEqual([]);
  vi.advanceTimersByTime(1);
  expect(ports[0]?.heard).toMatchObject([{ type: "request", kind: "open" }]);
  callOff();
  expect(ports[0]?.heard.at(-1)).toMatchObject({ type: "abort" });
  await vi.runAllTimersAsync();
});
