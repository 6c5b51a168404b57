import { expect, test } from "vitest";
import { listedArguments, questionAbout } from "./approval-question.ts";

const parts = (tool: string, args: Record<string, unknown>, facts: Parameters<typeof questionAbout>[1] = null) => {
  const { before, subject, after, isDestructive, others } = questionAbout({ tool, args }, facts);
  return [before + (subject && `[${subject}]`) + after, isDestructive, others];
};

const shown = (args: Record<string, unknown>) => listedArguments(args)?.map(({ name, value }) => `${name}: ${value}`);

test("a known tool asks in a sentence, and only a deletion is destructive", () => {
  expect(parts("delete_file", { path: "notes/old.md" })).toEqual(["Delete [notes/old.md]?", true, {}]);
  expect(parts("write_file", { path: "a.md", content: "hi" })).toEqual(["Change [a.md]?", false, { content: "hi" }]);
  expect(parts("fetch_url", { url: "https://example.com", format: "raw" })).toEqual(["Open [https://example.com]?", false, { format: "raw" }]);
  expect(parts("run_code", { language: "python", code: "print(1)" })).toEqual(["Run this program?", false, { language: "python", code: "print(1)" }]);
});

test("another tool is named by its title and its server, and all its arguments are listed", () => {
  expect(parts("mail__send", { body: "Hi", to: "ada@example.com" }, { title: "Send message" })).toEqual(["Allow “Send message” (mail)?", false, { body: "Hi", to: "ada@example.com" }]);
  expect(parts("crm__remove", { id: "7", count: 1 }, { destructive: true })).toEqual(["Allow “Remove” (crm)?", true, { id: "7", count: 1 }]);
  expect(parts("todo_list", {})).toEqual(["Allow “List to-dos”?", false, {}]);
  expect(parts("files__delete_file", { path: "a" })[0]).toBe("Allow “Delete file” (files)?");
  expect([parts("constructor", {})[0], questionAbout({ tool: "delete_file" }, null).plain]).toEqual(["Allow “Constructor”?", "Allow “Delete file”?"]);
});

test("an argument that the sentence does not show in full is listed as well", () => {
  for (const path of ["a".repeat(130), "two\nlines", " spaces ", 7, ""]) expect(parts("delete_file", { path })[2]).toEqual({ path });
  expect(parts("crm__remove", { id: "7", why: { of: "8" } })[2]).toEqual({ id: "7", why: { of: "8" } });
});

test("nothing that a person would not see is hidden in a sentence or a list", () => {
  expect(parts("delete_file", { path: "a\u202ecod.exe" })[0]).toBe("Delete [a⟨U+202E⟩cod.exe]?");
  expect(parts("x", {}, { title: "Read\u200b" })[0]).toBe("Allow “Read⟨U+200B⟩”?");
  expect(shown({ "n\u2066": "v\u3164", empty: "", count: 2, none: null })).toEqual(["n⟨U+2066⟩: v⟨U+3164⟩", 'Empty: ""', "Count: 2", "None: null"]);
});

test("arguments are listed by their names in words, with lists and yes or no as people write them", () => {
  expect(shown({ customer_id: "7", dryRun: true, "reply-to": "a", HTTP: "b", _x: "c" })).toEqual(["Customer id: 7", "Dry run: Yes", "Reply to: a", "HTTP: b", "_x: c"]);
  expect(shown({ tags: ["a", "b"], none: [], of: {} })).toEqual(["Tags: a, b", "None: []", "Of: {}"]);
});

test("arguments whose names in words are equal have their own names", () => {
  expect(shown({ user_id: "1", userId: "2", note: "a" })).toEqual(["user_id: 1", "userId: 2", "Note: a"]);
  const [nested] = listedArguments({ of: { is_on: 1, isOn: 2 } }) ?? [];
  expect(nested?.parts.map(({ name }) => name)).toEqual(["is_on", "isOn"]);
});

test("a text that could be taken for another value is quoted", () => {
  expect(shown({ one: ["a, b"], two: ["a", "b"], three: ["x", "a,b", '"c"'] })).toEqual(['One: "a, b"', "Two: a, b", 'Three: x, "a,b", "\\"c\\""']);
  expect(shown({ a: true, b: "Yes", c: "No", d: ["Yes"] })).toEqual(["A: Yes", 'B: "Yes"', 'C: "No"', 'D: "Yes"']);
  expect(shown({ a: null, b: "null", c: "[]", d: "{}", e: '""', f: "yes" })).toEqual(["A: null", 'B: "null"', 'C: "[]"', 'D: "{}"', 'E: "\\"\\""', "F: yes"]);
});

test("a value of several lines has lines of its own, and a nested one is a list in the list, folded if it is long", () => {
  expect(listedArguments({ code: "a\nb" })).toEqual([{ name: "Code", value: "a\nb", isLong: true, parts: [], isFolded: false }]);
  const [small, large] = listedArguments({ why: { code: "duplicate", of: ["x", { y: 1 }] }, rows: Array.from({ length: 13 }, (_, at) => ({ at })) }) ?? [];
  expect([small?.isFolded, small?.parts.map(({ name }) => name), small?.parts[1]?.parts.map(({ name }) => name)]).toEqual([false, ["Code", "Of"], ["1", "2"]]);
  expect([large?.isFolded, large?.value, large?.parts.length]).toEqual([true, "13 items", 13]);
  expect(listedArguments({ rows: Array.from({ length: 12 }, (_, at) => ({ at })) })?.[0]?.isFolded).toBe(false);
});

test("what is deep is JSON in the list, and very long arguments are JSON as a whole", () => {
  const [deep] = listedArguments({ a: { b: { c: { d: 1 } } } }) ?? [];
  expect(deep?.parts[0]?.parts[0]).toMatchObject({ name: "C", value: '{\n  "d": 1\n}', isLong: true });
  expect(listedArguments({ a: "x".repeat(25_000) })).toBeNull();
});
