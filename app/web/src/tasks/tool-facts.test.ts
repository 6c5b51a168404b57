import { expect, test } from "vitest";
import type { Tool } from "@khala/client";
import { readToolFacts } from "./tool-facts.ts";

test("the tools of a chat are read once, and again for a tool that is new", async () => {
  let requests = 0;
  const names = ["grep"];
  const chat = { id: "c1", call: <T>() => Promise.resolve((requests++, { items: names.map((name) => ({ name }) as Tool) }) as T) };
  expect([(await readToolFacts(chat, "grep"))?.name, (await readToolFacts(chat, "grep"))?.name, requests]).toEqual(["grep", "grep", 1]);
  names.push("mail");
  expect([(await readToolFacts(chat, "mail"))?.name, await readToolFacts(chat, "none"), requests]).toEqual(["mail", null, 3]);
});
