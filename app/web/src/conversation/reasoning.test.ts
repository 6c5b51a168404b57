import { expect, test } from "vitest";
import type { Part } from "@khala/client";
import { readReasoning } from "./reasoning.ts";

const part = (seq: number, kind: string, text: string) => ({ runId: "r", messageId: "m", seq, kind, data: { text }, createdAt: "2031-03-14T09:12:00Z" }) as Part;

test("the reasoning of each step is put together from all pages", async () => {
  const pages = [
    { items: [part(0, "reasoning-delta", "Let me "), part(1, "reasoning-delta", "look.")], nextAfter: 1, done: false },
    { items: [part(2, "text-delta", "Hm."), part(3, "reasoning-delta", "So it is.\n")], nextAfter: 3, done: true },
  ];
  const paths: string[] = [];
  const chat = { call: <T>(_: string, path: string) => Promise.resolve(pages[paths.push(path) - 1] as T) };
  expect(await readReasoning(chat, "r")).toBe("Let me look.\n\nSo it is.");
  expect(paths).toEqual(["/api/runs/r/parts?after=-1&limit=1000", "/api/runs/r/parts?after=1&limit=1000"]);
});
