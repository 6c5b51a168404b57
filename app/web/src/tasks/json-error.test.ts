import { expect, test } from "vitest";
import { random } from "@khala/client/testing/random.ts";
import { jsonErrorPosition } from "./json-error.ts";

const isJson = (text: string) => {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
};

test("the position of a mistake is its line and column", () => {
  expect(jsonErrorPosition('{"path": ')).toEqual({ line: 1, column: 10 });
  expect(jsonErrorPosition('{\n  "a": 1,\n  "b": tru\n}')).toEqual({ line: 3, column: 8 });
  expect(jsonErrorPosition('{"a": 1,}')).toEqual({ line: 1, column: 9 });
  expect(jsonErrorPosition("[1 2]")).toEqual({ line: 1, column: 4 });
  expect(jsonErrorPosition("{} {}")).toEqual({ line: 1, column: 4 });
  expect(jsonErrorPosition('["👩" x]')).toEqual({ line: 1, column: 6 });
  expect(jsonErrorPosition("")).toEqual({ line: 1, column: 1 });
});

test("whatever the text is, there is a position exactly if it is not JSON", () => {
  const pieces = ["{", "}", "[", "]", ",", ":", '"a"', '"\\u12"', "1", "-0.5e3", "01", "true", "nul", " ", "\n", '"', "\\"];
  let valid = 0;
  for (let seed = 1; seed <= 4_000; seed++) {
    const { below } = random(seed);
    const text = Array.from({ length: below(9) }, () => pieces[below(pieces.length)]).join("");
    expect([text, jsonErrorPosition(text) === null]).toEqual([text, isJson(text)]);
    if (isJson(text)) valid++;
  }
  expect(valid).toBeGreaterThan(50);
});
