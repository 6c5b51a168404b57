import { MemoryStore } from "@khala/client";
import { afterEach, expect, test, vi } from "vitest";

import { BrowserStorage } from "../browser/browser-storage.ts";
import { Keyring } from "./keyring.ts";
import { SendQueue } from "./send-queue.svelte.ts";

afterEach(() => vi.unstubAllGlobals());

test("a message is sent although the folder of its new chat is refused, which is told and kept", async () => {
  const sent: string[] = [];
  vi.stubGlobal("fetch", (url: string | URL, { method = "GET" }: RequestInit = {}) => {
    sent.push(`${method} ${new URL(url, "http://khala.test").pathname}`);
    const isRefused = method === "PATCH";
    const body = isRefused ? { code: "conflict", detail: "There are too many folders." } : { messageId: "1", runId: null };
    return Promise.resolve(new Response(JSON.stringify(body), { status: isRefused ? 409 : 200, headers: { "content-type": "application/json" } }));
  });
  const storage = new BrowserStorage(() => {
    throw new Error("There is no storage.");
  });
  const keyring = new Keyring(storage, () => undefined);
  const chat = keyring.update(keyring.add(), { folder: "Travel" });
  const said: string[] = [];
  const queue = new SendQueue(keyring, { userId: () => undefined, say: (words) => said.push(words) }, new MemoryStore());
  queue.add({ threadId: chat.id, text: "Hello", attachments: [], options: {}, keys: {} });
  await vi.waitFor(() => expect(queue.entriesOf(chat.id)[0]?.state.phase).toBe("sent"));
  expect(sent.slice(0, 2)).toEqual(["POST /api/threads", `PATCH /api/threads/${chat.id}/listing`]);
  expect(said).toHaveLength(1);
  expect(keyring.find(chat.id)?.folder).toBe("Travel");
});
