import { expect, test } from "vitest";
import type { Block, BlobRef } from "@khala/client";
import { parseTable } from "./csv.ts";
import { treeOf } from "./file-tree.ts";
import { blobOf, textOf } from "./item-content.ts";
import { fileNameOf, kindOfBlob, parseInfo } from "./item-kinds.ts";
import { itemsOf, madeItems } from "./made-items.ts";
import { mayMake } from "./may-make.ts";
import { isInOpenFolder, workspacePath } from "./workspace-files.ts";

type Given = Parameters<typeof madeItems>[0][number];
const answer = (id: string, ...blocks: Block[]): Given => ({ id, head: { role: "assistant" }, blocks: blocks.map((block, index) => ({ key: `${index}`, block })) }) as unknown as Given;
const call = (tool: string, args: Record<string, unknown>, state = "completed"): Block => ({ type: "tool", toolCallId: tool, tool, state, args }) as Block;
const text = (words: string): Block => ({ type: "text", text: words });
const blob = (more: Partial<BlobRef>): BlobRef => ({ blobId: "b", size: 9, sha256: "", mediaType: "text/plain", ...more });
const never = () => Promise.reject(new Error("Nothing is read."));

test("a file that tools write and change has a version for each", async () => {
  const items = madeItems([
    answer("1", call("write_file", { path: "src/a.py", content: "x = 1\ny = 1\n" })),
    answer("2", call("edit_file", { path: "src/a.py", old: "1", new: "$&2", all: true }), call("write_file", { path: "b.txt", content: "no" }, "failed")),
    answer("3", call("edit_file", { path: "unknown.py", old: "1", new: "2" }), call("delete_file", { path: "src/a.py" })),
  ]);
  expect(items.map(({ name, kind, language, isDeleted }) => [name, kind, language, isDeleted])).toEqual([["src/a.py", "code", "python", true]]);
  const [first, second] = items[0]?.versions ?? [];
  expect(first && (await textOf(first.source, never))).toBe("x = 1\ny = 1\n");
  expect(second && (await textOf(second.source, never))).toBe("x = $&2\ny = $&2\n");
  expect(itemsOf(answer("2"), items)).toHaveLength(1);
  expect(itemsOf(answer("3"), items)).toHaveLength(0);
});

test("a code block with the name of a file does not make the file less of one", () => {
  const shown = text("```markdown title=\"a.md\"\n# Draft\n```");
  const write = call("write_file", { path: "a.md", content: "# Final" });
  const files = [[shown], [shown, write], [write, shown]].map((blocks) => madeItems([answer("1", ...blocks)]).map(({ isFile, versions }) => [isFile, versions.length]));
  expect(files).toEqual([[[false, 1]], [[true, 2]], [[true, 2]]]);
});

test("long arguments are read from their blob", async () => {
  const long = { type: "tool", toolCallId: "a", tool: "write_file", state: "completed", argsBlob: blob({ preview: '{"path": "d/\\"q\\".md", "content": "# Hi' }) } as Block;
  const [item] = madeItems([answer("1", long)]);
  expect([item?.name, item?.kind]).toEqual(['d/"q".md', "markdown"]);
  const source = item?.versions[0]?.source;
  if (!source) throw new Error("There is no version.");
  expect(blobOf(source)?.blobId).toBe("b");
  expect(await textOf(source, () => Promise.resolve('{"path": "x", "content": "# Hi"}'))).toBe("# Hi");
  await expect(textOf(source, () => Promise.resolve("{}"))).rejects.toThrow(SyntaxError);
});

test("a plan is called by its name, and other files by theirs", () => {
  const write = (path: string, content: string) => call("write_file", { path, content });
  const plan = '{\n  "name": "Build the shop",\n  "userStories": []\n}';
  const items = madeItems([answer("1", write("prd.json", plan), write("data/shop.PRD.json", '{"project":"Shop"}'), write("package.json", plan), write("other/prd.json", "[]"))]);
  expect(items.map(({ title }) => title)).toEqual(["Build the shop", "Shop", null, null]);
  const long = { type: "tool", toolCallId: "a", tool: "write_file", state: "completed", argsBlob: blob({ preview: '{"path": "prd.json", "content": "{\\n \\"name\\": \\"Ship it\\", \\"userSt' }) } as Block;
  const renamed = madeItems([answer("1", write("prd.json", plan)), answer("2", long)]);
  expect(renamed.map(({ title, versions }) => [title, versions.length])).toEqual([["Ship it", 2]]);
});

test("code is worth a panel if it is large, can be shown, or has a name", () => {
  const made = (markdown: string) => madeItems([answer("1", text(markdown))]).map(({ name, kind }) => [name, kind]);
  expect(made("```python\nprint(1)\n```")).toEqual([]);
  expect(made("```mermaid\ngraph TD\na\nb\nc\n```")).toEqual([]);
  expect(made(`\`\`\`python\n${"x\n".repeat(25)}\`\`\``)).toEqual([["python code", "code"]]);
  expect(made("```python title=\"a/b.py\"\nprint(1)\n```")).toEqual([["a/b.py", "code"]]);
  expect(made("```html\n<title>Clock</title>\n<p>\n<p>\n```")).toEqual([["Clock", "html"]]);
  expect(made("```csv\na,b\n1,2\n3,4\n```")).toEqual([["csv code", "table"]]);
  expect(made("```html\n<title>Not closed</title>\n\n\n")).toEqual([]);
  expect([mayMake(answer("1", text("a\n```js")).blocks), mayMake(answer("1", text("a ```js")).blocks)]).toEqual([true, false]);
});

test("documents with the same title are versions of one thing", () => {
  const page = (words: string) => text(`\`\`\`html\n<title>Clock</title>\n<p>${words}\n</p>\n\`\`\``);
  const items = madeItems([answer("1", page("one")), answer("2", page("two"))]);
  expect(items.map(({ versions }) => versions.map(({ messageId }) => messageId))).toEqual([["1", "2"]]);
});

test("a file of an answer is told by its type", () => {
  const [item] = madeItems([answer("1", { type: "file", blob: blob({ name: "a.pdf", mediaType: "application/pdf" }) })]);
  expect([item?.kind, item?.name]).toEqual(["pdf", "a.pdf"]);
  expect([kindOfBlob("image/svg+xml", "a"), kindOfBlob("image/png", "a.html"), kindOfBlob("application/zip", "a.html"), kindOfBlob("text/plain; charset=utf-8", "a.csv")]).toEqual(["svg", "image", "file", "table"]);
});

test("the info string of a code block has a language and may have a name", () => {
  expect(parseInfo("html")).toEqual({ language: "html", name: null });
  expect(parseInfo("ts:src/a.ts")).toEqual({ language: "ts", name: "src/a.ts" });
  expect(parseInfo("js filename=a.js component")).toEqual({ language: "js", name: "a.js" });
  expect(parseInfo("index.html")).toEqual({ language: "html", name: "index.html" });
  expect([fileNameOf("My: page", "html"), fileNameOf("a/b.py", "python"), fileNameOf("", "brainfuck")]).toEqual(["My page.html", "a b.py", "code.txt"]);
});

test("a table is read with quotes, empty fields and the separator that it uses", () => {
  expect(parseTable('a,b\r\n"x, ""y""",\n1,2\n').rows).toEqual([["a", "b"], ['x, "y"', ""], ["1", "2"]]);
  expect(parseTable("a;b;c\n1,5;2;3").rows).toEqual([["a", "b", "c"], ["1,5", "2", "3"]]);
  expect(parseTable('a\tb\n"two\nlines"\t3').rows).toEqual([["a", "b"], ["two\nlines", "3"]]);
  expect(parseTable("").rows).toEqual([]);
  expect(parseTable('"open').rows).toEqual([["open"]]);
  const long = parseTable("1\n".repeat(1_500));
  expect([long.rows.length, long.hasMore, parseTable("1\n2\n").hasMore]).toEqual([1_000, true, false]);
});

test("paths are a tree with folders first", () => {
  const rows = treeOf([{ name: "b.txt" }, { name: "src/z.ts" }, { name: "src/lib/a.ts" }, { name: "a.txt" }]);
  expect(rows.map(({ path, depth, item }) => [path, depth, item === null])).toEqual([
    ["src/", 0, true],
    ["src/lib/", 1, true],
    ["src/lib/a.ts", 2, false],
    ["src/z.ts", 1, false],
    ["a.txt", 0, false],
    ["b.txt", 0, false],
  ]);
});

test("a tree shows what is in open folders", () => {
  const open = new Set(["src/", "src/lib/"]);
  expect(["a.txt", "src/", "src/a.ts", "src/lib/a.ts", "docs/", "docs/a.md", "src/other/", "src/other/a.ts"].filter((path) => isInOpenFolder(path, open))).toEqual(["a.txt", "src/", "src/a.ts", "src/lib/a.ts", "docs/", "src/other/"]);
  expect(isInOpenFolder("src/lib/a.ts", new Set(["src/lib/"]))).toBe(false);
});

test("the next page of files begins after the last path", () => {
  expect([workspacePath("c", ""), workspacePath("c", "a&b/ä.txt")]).toEqual(["/api/threads/c/workspace", "/api/threads/c/workspace?cursor=a%26b%2F%C3%A4.txt"]);
});
