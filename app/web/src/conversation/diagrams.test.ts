import { describe, expect, test } from "vitest";

import { mistakeOf } from "./diagram-mistakes.ts";
import { diagramLook, tonesOf } from "./diagram-theme.ts";
import { asFlowchart } from "./mindmap.ts";

const flowchart = (diagram: string): string[] => asFlowchart(diagram, ["#111", "#222"], "#fff").split("\n").map((line) => line.trim());

describe("a mind map", () => {
  test("is drawn as a flowchart of its topics, in their shapes and in the colours of their branches", () => {
    const found = flowchart('%% of leases\nmindmap\n  root((Khala))\n    Server\n      id[A "lease"]\n      ::icon(fa fa-book)\n    Page\n      Parts (all)');
    expect(found.slice(0, 10)).toEqual([
      "flowchart LR",
      't0(("Khala")):::centre', 't1("Server"):::branch0', "t0 --- t1", 't2["A #quot;lease#quot;"]:::leaf', "t1 --- t2",
      't3("Page"):::branch1', "t0 --- t3", 't4("Parts (all)"):::leaf', "t3 --- t4",
    ]);
    expect(found).toContain("classDef branch1 fill:#222,stroke:#222,color:#fff");
  });

  test("may be indented by any width, and goes back to a topic above", () => {
    expect(flowchart("mindmap\na\n   b\n      c\n d").filter((line) => line.includes("---"))).toEqual(["t0 --- t1", "t1 --- t2", "t0 --- t3"]);
  });

  test("is the only kind that is rewritten", () => {
    expect(asFlowchart("flowchart LR\n  mindmap --> b", [], "")).toBe("flowchart LR\n  mindmap --> b");
  });
});

describe("a mistake of a diagram", () => {
  test("is told by its line, without what Mermaid had expected there", () => {
    expect(mistakeOf("Parse error on line 2:\n...A[Start --> B{\n---^\nExpecting 'SQE', got 'EOF'", "")).toEqual({ kind: "line", line: 2 });
    expect(mistakeOf("Parsing failed: Lexer error on line 3, column 9: unexpected character", "")).toEqual({ kind: "line", line: 3 });
  });

  test("of its kind is told by the first word", () => {
    const message = "No diagram type detected matching given configuration for text: …";
    expect(mistakeOf(message, "---\ntitle: A\n---\n%% a comment\nflowchrt LR\n  A")).toEqual({ kind: "unknown", name: "flowchrt" });
  });

  test("of another sort is told by the first line of the message", () => {
    expect(mistakeOf("Incorrect usage of merge:\n more", "")).toEqual({ kind: "other", message: "Incorrect usage of merge." });
  });
});

describe("the look of diagrams", () => {
  /** The relative luminance by WCAG. */
  function luminance(colour: string): number {
    const [red = 0, green = 0, blue = 0] = [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16) / 255).map((share) => (share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }
  const contrast = (one: string, other: string): number => {
    const [dark = 0, bright = 0] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };

  test.each([false, true])("has text that can be read on its ground, in boxes and on tones; dark: %s", (isDark) => {
    const colours = diagramLook(isDark).themeVariables as Record<string, string>;
    const [tones, onTone] = tonesOf(isDark);
    const pairs = [["textColor", "background"], ["primaryTextColor", "primaryColor"], ["noteTextColor", "noteBkgColor"], ["taskTextDarkColor", "doneTaskBkgColor"], ["commitLabelColor", "commitLabelBackground"], ["lineColor", "background"]];
    for (const [words = "", ground = ""] of pairs) expect(contrast(colours[words] ?? "", colours[ground] ?? ""), words).toBeGreaterThan(4.5);
    for (const tone of tones) expect(contrast(onTone, tone), tone).toBeGreaterThan(4.5);
  });
});
