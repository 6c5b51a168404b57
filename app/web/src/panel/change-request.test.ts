// @vitest-environment jsdom

import { expect, test } from "vitest";
import { changeRequest, linesOf, passageIn } from "./change-request.ts";

const CODE = "def hold():\n\n    # wait\n    renew(30)\n";

/** A selection from one offset of the code to another; it is highlighted, so it has several nodes. */
function select(from: number, to: number): { selection: Selection; range: Range; area: Element } {
  document.body.innerHTML = '<div id="area"><pre><code data-numbered></code></pre></div><p id="after">after</p>';
  const [area, code] = [document.querySelector("#area"), document.querySelector("code")];
  if (!area || !code) throw new Error("There is no area.");
  code.innerHTML = CODE.replace("# wait", "<span># wait</span>");
  const range = document.createRange();
  range.setStart(...place(code, from));
  range.setEnd(...place(code, to));
  const selection = getSelection();
  if (!selection) throw new Error("There is no selection.");
  selection.removeAllRanges();
  selection.addRange(range);
  return { selection, range, area };
}

function place(code: Element, offset: number): [Node, number] {
  const walker = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
  let left = offset;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const length = node.textContent?.length ?? 0;
    if (left <= length) return [node, left];
    left -= length;
  }
  throw new Error("The code is shorter.");
}

test("a selection of code is quoted with its indent and the numbers of its lines", () => {
  const { selection, range, area } = select(11, CODE.length);
  expect(passageIn(selection, area)).toBe("    # wait\n    renew(30)");
  expect(linesOf(range)).toEqual({ first: 3, last: 4 });
  expect(linesOf(select(0, 3).range)).toEqual({ first: 1, last: 1 });
  expect(linesOf(select(20, 30).range)).toEqual({ first: 3, last: 4 });
});

test("what is selected elsewhere, or has no text, is not quoted", () => {
  const { selection, range, area } = select(0, 5);
  range.setEnd(document.querySelector("#after")?.firstChild ?? document.body, 2);
  expect(passageIn(selection, area)).toBe("");
  expect(linesOf(range)).toBeNull();
  expect(passageIn(select(11, 13).selection, area)).toBe("");
  const other = select(0, 5);
  document.querySelector("code")?.removeAttribute("data-numbered");
  expect(linesOf(other.range), "code in a document").toBeNull();
});

test("a request for a change names the file, and the lines where they are numbered", () => {
  expect(changeRequest("a.py")).toBe("a.py");
  expect(changeRequest("a.md", "Some words.", null)).toBe("a.md:\nSome words.");
  expect(changeRequest("a.py", "x = 1", { first: 3, last: 3 })).toBe("a.py, line 3:\nx = 1");
  expect(changeRequest("a.py", "x = 1\ny = 2", { first: 3, last: 1004 })).toBe("a.py, lines 3–1,004:\nx = 1\ny = 2");
});
