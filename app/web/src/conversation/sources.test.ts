import { describe, expect, it } from "vitest";
import type { ToolBlock } from "@khala/client";
import { sourcesOf } from "./sources.ts";

function call(tool: string, changes: Partial<ToolBlock>): ToolBlock {
  return { type: "tool", toolCallId: "c", tool, state: "completed", ...changes };
}
const shown = (blocks: readonly ToolBlock[], text = "") => sourcesOf(blocks, text).map(({ title, domain, url }) => [title, domain, url]);

describe("The sources of an answer", () => {
  it("are the pages that it fetched, with their titles", () => {
    const fetched = call("fetch_url", { args: { url: "https://www.postgresql.org/docs/" }, summary: "PostgreSQL: Documentation", output: "…" });
    const raw = call("fetch_url", { args: { url: "https://example.com/a.csv" }, summary: "1,204 bytes of text/csv from example.com" });
    const untitled = call("fetch_url", { args: { url: "https://example.com/b" }, summary: "https://example.com/b" });
    expect(shown([fetched, raw, untitled])).toEqual([
      ["PostgreSQL: Documentation", "postgresql.org", "https://www.postgresql.org/docs/"],
      ["", "example.com", "https://example.com/a.csv"],
      ["", "example.com", "https://example.com/b"],
    ]);
  });

  it("are results with a title and an address: objects, JSON as text, cut-off JSON and lists in text", () => {
    const results = (n: number) => [{ title: `T${n}`, url: `https://example.com/${n}`, snippet: "{words}" }, { name: `N${n}`, link: `https://example.com/n${n}` }];
    const text = JSON.stringify({ results: [...results(3), ...results(4)] });
    const calls = [
      call("web_search", { output: { web: { results: results(1) } } }),
      call("search", { output: { content: [{ type: "text", text: JSON.stringify(results(2)) }] } }),
      call("search", { blob: { blobId: "b", size: 9000, sha256: "", mediaType: "application/json", preview: text.slice(0, text.indexOf("N4") + 1) } }),
      call("exa_search", { output: "Title: T5\nAuthor: A\nURL: https://example.com/5\nText: …\n\nTitle: T6\nURL: https://example.com/6\n" }),
    ];
    expect(shown(calls).map(([title]) => title)).toEqual(["T1", "N1", "T2", "N2", "T3", "N3", "T4", "T5", "T6"]);
  });

  it("are each there once, and those that the answer links to come first", () => {
    const found = call("search", { output: [{ title: "A", url: "https://example.com/a" }, { title: "B", url: "https://example.com/b#part" }] });
    const read = call("fetch_url", { args: { url: "https://example.com/b" }, summary: "The title of B" });
    expect(shown([read, found], "See [b](https://example.com/b).").map(([title]) => title)).toEqual(["The title of B", "A"]);
  });

  it("count as linked to only by their whole address", () => {
    const found = call("search", { output: ["1", "10", "a.csv", "a", ""].map((path) => ({ title: path || "root", url: `https://example.com/${path}` })) });
    const first = (text: string, count: number) => shown([found], text).slice(0, count).map(([title]) => title);
    expect(first("See <https://example.com/10>.", 2)).toEqual(["10", "1"]);
    expect(first("See [it](https://example.com/a.csv).", 3)).toEqual(["a.csv", "1", "10"]);
    for (const end of ["", ".", "/", "/).", "#part", "?", "。", "**,", " is it"]) expect(first(`It is https://example.com/a${end}`, 2)).toEqual(["a", "1"]);
    expect(first("https://example.com", 2)).toEqual(["root", "1"]);
    expect(first("https://example.com.evil.example https://example.com/a?b", 2)).toEqual(["1", "10"]);
  });

  it("are pages only of tools that read pages", () => {
    const read = (tool: string) => shown([call(tool, { args: { url: "https://example.com/b" } })]).length > 0;
    for (const tool of ["fetch", "web_fetch", "fetch_url", "fetchUrl", "read_web_page", "open-page", "browse", "visit_webpage", "firecrawl_scrape", "crawling_exa", "tavily-extract", "extract_content", "mcp__fetch__fetch_html"]) expect(read(tool), tool).toBe(true);
    for (const tool of ["open_ticket", "extract_table", "read_table", "openapi", "reader_mode", "fetch_webhook", "thread", "write_file"]) expect(read(tool), tool).toBe(false);
  });

  it("are nothing but safe addresses, and come from calls that succeeded", () => {
    const hostile = ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "https://bank.example@evil.example/", "//evil.example", 7, null];
    expect(shown([call("search", { output: hostile.map((url) => ({ title: "T", url })) })])).toEqual([]);
    expect(shown([call("fetch_url", { state: "failed", args: { url: "https://example.com" } })])).toEqual([]);
    expect(shown([call("write_file", { args: { path: "a", url: "https://example.com" }, output: { path: "a" } })])).toEqual([]);
  });

  it("are few, however much a tool returns, and are found fast", () => {
    const many = Array.from({ length: 5000 }, (_, at) => ({ title: "x".repeat(500), url: `https://example.com/${at}` }));
    const found = sourcesOf([call("search", { output: many })], "");
    expect(found).toHaveLength(50);
    expect(found[0]?.title).toHaveLength(200);
    const deep = JSON.parse(`${'{"a":'.repeat(500)}1${"}".repeat(500)}`) as unknown;
    const start = performance.now();
    for (const output of [deep, "Title: ".repeat(20_000), "Title: a\n".repeat(10_000), `[${'"url":"'.repeat(20_000)}`, `[${'{"title":"\\'.repeat(9_000)}`]) sourcesOf([call("search", { output })], "");
    expect(performance.now() - start).toBeLessThan(1000);
  });
});
