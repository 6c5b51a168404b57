// @vitest-environment jsdom
import { describe, expect, it } from "vitest";

import { highlight, known } from "./highlight.ts";

describe("colours of code", () => {
  it.each([
    ["py", "python"],
    ["TypeScript", "typescript"],
    ["c++", "cpp"],
    ["nonsense", null],
    ["constructor", null],
    ["", null],
  ])("know %j as %j", (language, name) => {
    expect(known(language)).toBe(name);
  });

  it("are classes around the same text, and nothing else", async () => {
    const code = 'def f(): return "<img src=x onerror=alert(1)>"  # </code><script>';
    const box = document.createElement("div");
    box.append((await highlight(code, "python")) ?? "");
    expect(box.textContent).toBe(code);
    expect(box.querySelector(".hljs-keyword")?.textContent).toBe("def");
    expect([...box.querySelectorAll("*")].every(({ nodeName }) => nodeName === "SPAN")).toBe(true);
  });

  it("are not looked for in what is long or unknown", async () => {
    expect(await highlight("let a;".repeat(10_000), "js")).toBeNull();
    expect(await highlight("let a;", "nonsense")).toBeNull();
  });
});
