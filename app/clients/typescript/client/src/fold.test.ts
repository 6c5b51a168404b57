import { describe, expect, test } from "vitest";

import cases from "../../../../../tests/laws/fold_cases.json";
import { filesOf, fold, textOf, pendingApprovals } from "./fold.ts";
import type { Block, Part } from "./frames.ts";

type Case = { name: string; begin?: Block[]; parts: Part[]; content: Block[] };

describe("folded up to any part and then on, it is what the server's cases say", () => {
  test.each(cases as unknown as Case[])("$name", ({ begin = [], parts, content }) => {
    for (let cut = 0; cut <= parts.length; cut++) {
      const atCut = JSON.parse(JSON.stringify(fold(begin, parts.slice(0, cut)))) as Block[];
      const whole = fold(atCut, parts.slice(cut));
      expect(JSON.parse(JSON.stringify(whole)), `cut at ${cut}`).toEqual(content);
      expect(whole, "what has no value is left out").toStrictEqual(content);
    }
  });
});

test("blocks that don't change stay the same objects, and what was given is left alone", () => {
  const before: Block[] = [{ type: "notice", code: "c", message: "m" }, { type: "text", text: "a" }];
  const copy = structuredClone(before);
  const after = fold(before, [{ kind: "text-delta", data: { text: "b" } } as Part]);
  expect(before).toEqual(copy);
  expect(after[0]).toBe(before[0]);
  expect(after[1]).not.toBe(before[1]);
});

test("the text, the files and what waits for approval are found in a content", () => {
  const blob = { blobId: "b", size: 1, sha256: "", mediaType: "text/plain" };
  const content: Block[] = [
    { type: "text", text: "a" },
    { type: "tool", toolCallId: "x", tool: "write_file", state: "blocked" },
    { type: "file", blob },
    { type: "text", text: "b" },
  ];
  expect(textOf({ content })).toBe("ab");
  expect(filesOf({ content })).toEqual([blob]);
  expect(pendingApprovals(content)?.map(({ toolCallId }) => toolCallId)).toEqual(["x"]);
  expect(pendingApprovals([])).toBeNull();
});

test("text that did not fit the requested format is no part of the answer", () => {
  const content: Block[] = [
    { type: "text", text: "Let me see." },
    { type: "tool", toolCallId: "x", tool: "look", state: "completed" },
    { type: "text", text: "{" },
    { type: "notice", code: "format_repair", message: "answer: not JSON" },
    { type: "text", text: "{}" },
  ];
  expect(textOf({ content })).toBe("Let me see.{}");
});
