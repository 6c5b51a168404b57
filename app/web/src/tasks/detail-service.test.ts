import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { BlobRef } from "@khala/client";
import type { DetailArgs, BlobContent, DetailMethod, DetailRequest, TreeRows, FromDetail } from "../workers/detail.messages.ts";
import { completeUtf8Length, DetailService, MAX_JSON_BYTES, MAX_CACHED_DETAILS, TEXT_CHUNK_BYTES } from "./detail-service.ts";

type Request = { path: string; headers: Record<string, string>; signal: AbortSignal; answer: (body: string | Uint8Array<ArrayBuffer>, status?: number) => void };

let requests: Request[];
let told: FromDetail[];
let detailing: DetailService;
let last = 0;

beforeEach(() => {
  requests = [];
  told = [];
  detailing = new DetailService((one) => told.push(one));
  vi.stubGlobal("fetch", (path: string, init: { headers: Record<string, string>; signal: AbortSignal }) => {
    return new Promise<Response>((resolve, reject) => {
      init.signal.addEventListener("abort", () => reject(new DOMException("aborted", "AbortError")));
      requests.push({ path, ...init, answer: (body, status = 200) => resolve(new Response(body, { status })) });
    });
  });
});
afterEach(() => void vi.unstubAllGlobals());

const blob = (blobId: string, mediaType: string, size: number): BlobRef => ({ blobId, mediaType, size, sha256: "ab" });

function ask<K extends DetailMethod>(kind: K, of: BlobRef, asked: DetailArgs<K>, keys = {}): number {
  detailing.receive({ type: "request", id: ++last, kind, blob: of, keys, ...asked } as unknown as DetailRequest);
  return last;
}

async function answerTo(id: number): Promise<unknown> {
  await vi.waitFor(() => expect(told.some((one) => one.id === id)).toBe(true), { interval: 1 });
  const found = told.find((one) => one.id === id);
  return found && ("result" in found ? found.result : found.error);
}

async function request(number: number): Promise<Request> {
  await vi.waitFor(() => expect(requests.length).toBeGreaterThan(number), { interval: 1 });
  const found = requests[number];
  if (!found) throw new Error("There is no such request.");
  return found;
}

test("JSON becomes a tree, and is asked for once, with the keys of its chat", async () => {
  const json = blob("a", "application/json", 20);
  const both = [ask("open", json, {}, { anonKey: "K" }), ask("open", json, {}, { anonKey: "K" })];
  (await request(0)).answer('{"a":{"b":1}}');
  const [one, other] = (await Promise.all(both.map(answerTo))) as Extract<BlobContent, { kind: "tree" }>[];
  expect(one).toMatchObject({ kind: "tree", count: 2 });
  expect(other).toEqual(one);
  expect(requests.map(({ path, headers }) => [path, headers["X-Anon-Key"]])).toEqual([["/api/blobs/a?direct=true", "K"]]);
  const closed = (await answerTo(ask("set", json, { path: "0", isOpen: false, from: 0, most: 10 }, { anonKey: "K" }))) as TreeRows;
  expect(closed.count).toBe(1);
  expect(((await answerTo(ask("open", json, {}, { anonKey: "K" }))) as TreeRows).count).toBe(1);
  expect(requests.length).toBe(1);
});

test("what was read with one key, or by one user, is not told to another", async () => {
  const text = blob("a", "text/plain", 2);
  const first = ask("open", text, {}, { anonKey: "K" });
  (await request(0)).answer("hi", 206);
  expect(await answerTo(first)).toEqual({ kind: "text", text: "hi", next: null });
  for (const [index, keys] of [{ anonKey: "L" }, { anonKey: "K", userId: "U" }].entries()) {
    const second = ask("open", text, {}, keys);
    (await request(index + 1)).answer('{"code":"forbidden","detail":"No."}', 403);
    expect(await answerTo(second)).toMatchObject({ status: 403, code: "forbidden", message: "No." });
  }
});

test("a long text comes in pieces, none of which cuts a letter in two", async () => {
  const bytes = new TextEncoder().encode(`${"x".repeat(TEXT_CHUNK_BYTES - 1)}é and more`);
  const text = blob("a", "text/plain", bytes.length);
  const opened = ask("open", text, {});
  const first = await request(0);
  expect(first.headers.Range).toBe(`bytes=0-${TEXT_CHUNK_BYTES - 1}`);
  first.answer(bytes.slice(0, TEXT_CHUNK_BYTES), 206);
  const content = await answerTo(opened);
  expect(content).toEqual({ kind: "text", text: "x".repeat(TEXT_CHUNK_BYTES - 1), next: TEXT_CHUNK_BYTES - 1 });
  const further = ask("more", text, { from: TEXT_CHUNK_BYTES - 1 });
  (await request(1)).answer(bytes.slice(TEXT_CHUNK_BYTES - 1), 206);
  expect(await answerTo(further)).toEqual({ text: "é and more", next: null });
});

test("a server that knows no ranges is understood, too", async () => {
  const text = blob("a", "text/plain", 8);
  const further = ask("more", text, { from: 4 });
  (await request(0)).answer("01234567", 200);
  expect(await answerTo(further)).toEqual({ text: "4567", next: null });
});

test("images get the type that was checked, other files are not read at all", async () => {
  const image = ask("open", blob("a", "image/png", 3), {});
  (await request(0)).answer("png");
  const content = (await answerTo(image)) as Extract<BlobContent, { kind: "image" }>;
  expect([content.kind, content.bytes.type, content.bytes.size]).toEqual(["image", "image/png", 3]);
  expect(await answerTo(ask("open", blob("b", "image/svg+xml", 3), {}))).toEqual({ kind: "file" });
  expect(await answerTo(ask("open", blob("c", "application/pdf", 3), {}))).toEqual({ kind: "file" });
  expect(requests.length).toBe(1);
});

test("JSON that is too large, or none, is text", async () => {
  ask("open", blob("a", "application/json", MAX_JSON_BYTES + 1), {});
  expect((await request(0)).headers.Range).toBe(`bytes=0-${TEXT_CHUNK_BYTES - 1}`);
  const broken = ask("open", blob("b", "application/json", 4), {});
  (await request(1)).answer("{oh!");
  (await request(2)).answer("{oh!", 206);
  expect(await answerTo(broken)).toEqual({ kind: "text", text: "{oh!", next: null });
});

test("a request is called off when nobody waits for it any more, and not before", async () => {
  const text = blob("a", "text/plain", 2);
  const [one, other] = [ask("open", text, {}), ask("open", text, {})];
  const { signal } = await request(0);
  detailing.receive({ type: "abort", id: one });
  expect(signal.aborted).toBe(false);
  detailing.receive({ type: "abort", id: other });
  expect(signal.aborted).toBe(true);
  const again = ask("open", text, {});
  (await request(1)).answer("hi", 206);
  expect(await answerTo(again)).toMatchObject({ text: "hi" });
  expect(told.map(({ id }) => id)).toEqual([again]);
});

test("only the last are kept", async () => {
  const open = async (name: string, number: number) => {
    const id = ask("open", blob(name, "text/plain", 2), {});
    (await request(number)).answer("hi", 206);
    await answerTo(id);
  };
  for (let number = 0; number <= MAX_CACHED_DETAILS; number++) await open(`blob ${number}`, number);
  await answerTo(ask("open", blob(`blob ${MAX_CACHED_DETAILS}`, "text/plain", 2), {}));
  expect(requests.length).toBe(MAX_CACHED_DETAILS + 1);
  await open("blob 0", MAX_CACHED_DETAILS + 1);
});

test("lines are asked for as they are", async () => {
  const id = ask("lines", blob("a", "text/plain", 9), { query: { mode: "grep", pattern: "a b&c", ignoreCase: true } });
  const { path, answer } = await request(0);
  expect(path).toBe("/api/blobs/a/lines?lines=100&mode=grep&pattern=a+b%26c&ignoreCase=true");
  answer('{"items":[{"line":3,"text":"a b&c","match":true}]}');
  expect(await answerTo(id)).toEqual({ items: [{ line: 3, text: "a b&c", match: true }] });
});

test("bytes are cut behind the last whole letter", () => {
  const bytes = new TextEncoder().encode("aé漢🐈");
  const ends = Array.from({ length: bytes.length + 1 }, (_, length) => completeUtf8Length(bytes.subarray(0, length)));
  expect(ends).toEqual([0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10]);
});
