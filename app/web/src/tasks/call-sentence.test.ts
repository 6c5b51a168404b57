import { expect, test } from "vitest";
import type { ToolBlock } from "@khala/client";
import { CallCounts } from "./call-counts.ts";
import { doingSentence, doneSentence } from "./call-sentence.ts";
import { endedStatus } from "./call-labels.ts";

type Call = [tool: string, args?: Record<string, unknown>, state?: ToolBlock["state"]];

function counted(...calls: readonly Call[]): CallCounts {
  const counts = new CallCounts();
  calls.forEach(([tool, args = {}, state = "completed"], at) => counts.put({ type: "tool", toolCallId: String(at), tool, args, state }));
  return counts;
}
const sentence = (...calls: readonly Call[]) => doneSentence(counted(...calls).done);
const read = (path: string): Call => ["read_file", { path }];

test("what calls did is one sentence, in the order of their first calls", () => {
  expect(sentence(read("a.md"), read("notes/b.md"), ["web_search", { query: "leases" }], read("c.md"), ["write_file", { path: "notes/report.md", content: "x" }])).toBe("Read 3 files, searched the web and wrote report.md");
  expect(sentence(read("notes/a.md"), ["grep", { pattern: "x" }])).toBe("Read a.md and searched the files");
  expect(sentence(["fetch_url", { url: "https://example.com/a?b" }])).toBe("Opened example.com");
  expect(sentence()).toBe("");
});

test("a file that is read twice is one file, and files whose names are unknown are as many as their calls", () => {
  expect(sentence(read("a.md"), read("a.md"))).toBe("Read a.md");
  expect(sentence(read("a.md"), ["read_file"], ["read_file"])).toBe("Read 3 files");
  expect(sentence(["read_file"])).toBe("Read 1 file");
});

test("at most three actions are told, small ones last, and how many steps are left", () => {
  const many: Call[] = [["todo_add", { text: "a" }], ["todo_add", { text: "b" }], read("a.md"), ["run_code", { code: "1" }], ["run_code", { code: "2" }], ["edit_file", { path: "b.md" }], ["todo_list"]];
  expect(sentence(...many)).toBe("Read a.md, ran 2 programs, edited b.md and 3 more steps");
  expect(sentence(...Array.from({ length: 30 }, (): Call => ["todo_add", { text: "x" }]))).toBe("Added 30 to-dos");
});

test("another tool is named with its server", () => {
  expect(sentence(["mail__send_message"], ["mail__send_message"], ["evil__delete_file"])).toBe("Used “Send message” (mail) 2 times and used “Delete file” (evil)");
  expect(sentence(["constructor"], ["__proto__"])).toBe("Used “Constructor” and used “__proto__”");
});

test("calls that failed did nothing, and are counted by themselves", () => {
  const counts = counted(read("a.md"), ["grep", { pattern: "x" }, "failed"], ["grep", { pattern: "y" }, "failed"], ["run_code", {}, "cancelled"]);
  expect([doneSentence(counts.done), endedStatus(counts.counts)]).toEqual(["Read a.md", "2 failed, 1 cancelled"]);
});

test("a call that runs is told in the present", () => {
  const doing = (tool: string, args: Record<string, unknown> = {}) => doingSentence({ tool, args });
  expect([doing("read_file", { path: "notes/notes.md" }), doing("read_file"), doing("grep", { pattern: "x" })]).toEqual(["Reading notes.md…", "Using “Read file”…", "Searching the files…"]);
  expect([doing("fetch_url", { url: "http://127.0.0.1:80/x" }), doing("fetch_url", { url: "nonsense" }), doing("mail__send_message")]).toEqual(["Opening 127.0.0.1…", "Opening nonsense…", "Using “Send message” (mail)…"]);
});

test("long names are cut, and what nobody would see is named", () => {
  expect(sentence(read(`${"x".repeat(60)}.md`))).toBe(`Read ${"x".repeat(39)}…`);
  expect(sentence(read("a\u202ecod.exe"))).toBe("Read a⟨U+202E⟩cod.exe");
});
