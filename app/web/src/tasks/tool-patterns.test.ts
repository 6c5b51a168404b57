import { expect, test } from "vitest";
import { patternName } from "./tool-patterns.ts";

test("a tool is called as on its cards", () => {
  expect([patternName("grep"), patternName("mail__send_message")]).toEqual(["Search in files", "Send message (mail)"]);
});

test("a pattern says which tools it has", () => {
  expect([patternName("*"), patternName("mail__*"), patternName("my_mail__*"), patternName("todo_*"), patternName("fs*")]).toEqual(["All tools", "All tools of mail", "All tools of my_mail", "Tools that begin with todo_", "Tools that begin with fs"]);
});

test("a pattern that has no words stays as it is, with its invisible characters named", () => {
  expect([patternName("*_file"), patternName("a*b"), patternName("__*")]).toEqual(["*_file", "a*b", "__*"]);
  expect(patternName("to\u202edo*")).toContain("U+202E");
});
