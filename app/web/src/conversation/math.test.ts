// @vitest-environment jsdom
import { describe, expect, it } from "vitest";

import { sanitizeFormula } from "./sanitize.ts";
import { tokenize, renderTokens } from "./markdown.ts";
import { dollarFormula, texOf } from "./math.ts";
import { typeset } from "./typeset.ts";

function formulas(text: string): string[] {
  const box = document.createElement("div");
  box.innerHTML = renderTokens(tokenize(text));
  return [...box.querySelectorAll(".math")].map((found) => found.textContent);
}

describe("formulas", () => {
  it.each([
    ["so $x^2$ is", ["$x^2$"]],
    ["$a$ and $b$", ["$a$", "$b$"]],
    ["$5x + 3$", ["$5x + 3$"]],
    ["$\\frac{1}{2}$", ["$\\frac{1}{2}$"]],
    ["\\(a_1 + b_2\\) text", ["\\(a_1 + b_2\\)"]],
    ["$$\nx = 1\n$$", ["$$\nx = 1\n$$"]],
    ["text\n$$x = 1$$\ntext", ["$$x = 1$$"]],
    ["\\[\n\\begin{aligned}\na &= b \\\\\nc &= d\n\\end{aligned}\n\\]", ["\\[\n\\begin{aligned}\na &= b \\\\\nc &= d\n\\end{aligned}\n\\]"]],
    ["in line \\[x\\] too", ["\\[x\\]"]],
    ["- $a_1$ in a list\n- | $b$", ["$a_1$", "$b$"]],
  ])("are found in %j", (text, found) => {
    expect(formulas(text)).toEqual(found);
  });

  it.each([
    "it costs $5 and $6",
    "from $5 to 6$ more",
    "$5",
    "$5-$6",
    "US$ 5 and A$ 6",
    "\\$x\\$",
    "a $ b $ c",
    "`$x$` is code",
    "```\n$x$\n$$y$$\n```",
    "$HOME and ${PATH}",
    "cost$5$x",
    "$1,000, or 2,000$ at most",
    "$$\n\nnot closed",
  ])("are not found in %j", (text) => {
    expect(formulas(text)).toEqual([]);
  });

  it("knows what stands between dollars", () => {
    expect(dollarFormula("$x$")).toBe("x");
    expect(dollarFormula("$x $")).toBeNull();
    expect(texOf("$$ x $$")).toEqual({ tex: "x", display: true });
    expect(texOf("\\(x\\)")).toEqual({ tex: "x", display: false });
  });

  it("are set as MathML without styles, classes of scripts or sources", async () => {
    const box = document.createElement("div");
    const fragment = await typeset("$\\frac{a}{b} + \\color{red}{x^2}$");
    if (fragment) box.append(fragment);
    expect(box.querySelector("math mfrac")).not.toBeNull();
    expect(box.querySelectorAll("[style], annotation, a, img")).toHaveLength(0);
  });

  it.each(["$\\href{javascript:alert(1)}{x}$", "$\\includegraphics{https://evil.example/x}$", "$\\htmlStyle{color:red}{x}$", "$\\url{javascript:alert(1)}$", "$\\htmlData{a=b}{x}$"])(
    "reach nothing by %s",
    async (source) => {
      const box = document.createElement("div");
      const fragment = await typeset(source);
      if (fragment) box.append(fragment);
      expect(box.innerHTML).not.toMatch(/href=|src=|style=|data-|<a|<img/);
    },
  );

  it.each([
    ["$O(n \\log n)$", "O(n log n)"],
    ["$2\\ln n+\\gamma$", "2 ln n+γ"],
    ["$\\sin(x)\\cos x$", "sin(x) cos x"],
    ["$\\log\\log n$", "log log n"],
    ["$a\\max_i x_i$", "a maxi xi"],
    ["$\\cos^2 x$", "cos2 x"],
    ["$\\lim_{x\\to 0} f(x)$", "limx→0 f(x)"],
    ["$-\\exp(x)$", "−exp(x)"],
  ])("have thin spaces beside the names of operators: %s", async (source, text) => {
    const box = document.createElement("div");
    box.append((await typeset(source)) ?? "");
    for (const space of box.querySelectorAll("mspace")) space.textContent = " ";
    expect(box.textContent.replaceAll("\u2061", "")).toBe(text);
  });

  it("stay text where they can't be read, and end where they would go on for ever", async () => {
    expect(await typeset("$\\frac{$")).toBeNull();
    expect(await typeset("$\\def\\a{\\a\\a}\\a$")).toBeNull();
  });

  it("are MathML and nothing else once they are cleaned", () => {
    const box = document.createElement("div");
    box.append(sanitizeFormula('<math><mi style="x" onclick="x" href="javascript:x">x</mi><annotation-xml><img src=x></annotation-xml></math><script>x</script><svg></svg><img src=x>'));
    expect(box.innerHTML).toBe("<math><mi>x</mi></math>");
  });
});
