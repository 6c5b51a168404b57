import { expect, test } from "vitest";
import { fileFacts } from "./file-type.ts";

test("a file is described by its type, if a short name for it is known, and its size", () => {
  expect(fileFacts("photo.heic", "image/heic", 2_100_000)).toBe("HEIC · 2.1\u00a0MB");
  expect(fileFacts("minutes", "application/pdf", 900)).toBe("PDF · 900\u00a0bytes");
  expect([fileFacts("notes", "text/plain", 12), fileFacts("v1.2", "text/plain", 12), fileFacts("a.somewhat", "", 12)]).toEqual(["12\u00a0bytes", "12\u00a0bytes", "12\u00a0bytes"]);
});
