// @vitest-environment jsdom

import { expect, test } from "vitest";
import { ApiError } from "@khala/client";
import { WorkspaceText, withLineEnds } from "./workspace-text.svelte.ts";

function fake(file: { bytes: Uint8Array<ArrayBuffer> | null }) {
  const asked: unknown[][] = [];
  const requests = {
    id: "c",
    download: (path: string) => {
      asked.push(["GET", path]);
      return file.bytes ? Promise.resolve(new Blob([file.bytes])) : Promise.reject(new ApiError(404, { code: "not_found" }));
    },
    call: <T>(...given: unknown[]) => {
      asked.push(given);
      return Promise.resolve({} as T);
    },
  };
  return { asked, requests };
}
const utf8 = (text: string) => new TextEncoder().encode(text);

test("the text of a file is read, edited and saved in place of what was read", async () => {
  const { asked, requests } = fake({ bytes: utf8("\ufeffone\r\ntwo") });
  const file = new WorkspaceText(requests, "a b/ä.md");
  await file.load();
  expect(file.text).toBe("\ufeffone\r\ntwo");
  file.draft = { before: "\ufeffone\r\ntwo", text: "x" };
  expect(new WorkspaceText(requests, "a b/ä.md").draft?.text, "another view of the file has the draft").toBe("x");
  expect(new WorkspaceText(requests, "other.md").draft).toBeNull();
  await file.save("\ufeffone\r\ntwo", "one\nthree");
  const url = "/api/threads/c/workspace/file?path=a%20b%2F%C3%A4.md";
  expect(asked).toEqual([["GET", url], ["PUT", url, { before: "\ufeffone\r\ntwo", content: "one\r\nthree" }]]);
  expect([file.text, file.draft]).toEqual(["one\r\nthree", null]);
});

test("a file that is not there or is no text cannot be edited, and other errors are those of the request", async () => {
  const missing = new WorkspaceText(fake({ bytes: null }).requests, "a");
  await missing.load();
  const binary = new WorkspaceText(fake({ bytes: new Uint8Array([0xff, 0xfe, 0x00]) }).requests, "a");
  await binary.load();
  expect([missing.text, binary.text]).toEqual([null, null]);
  const { requests } = fake({ bytes: null });
  const failing = new WorkspaceText({ ...requests, download: () => Promise.reject(new ApiError(503, { code: "unavailable" })) }, "a");
  await expect(failing.load()).rejects.toThrow(ApiError);
});

test("an edited text has the line ends of the file, if all of them are alike", () => {
  expect([withLineEnds("a\nb\n", "x\r\ny"), withLineEnds("a\nb", "x\ny"), withLineEnds("a\nb", "x\r\ny\nz"), withLineEnds("a\nb", "x")]).toEqual(["a\r\nb\r\n", "a\nb", "a\nb", "a\nb"]);
});
