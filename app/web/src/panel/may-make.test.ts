import { expect, test } from "vitest";

import { kindOfBlob } from "./item-kinds.ts";
import { opensInPanel } from "./may-make.ts";

test("a file has a button for the side panel exactly where that shows its content, and images have their card", () => {
  const types = ["text/plain", "text/csv; charset=utf-8", "text/html", "application/json", "application/ld+json", "application/pdf", "image/png", "image/svg+xml", "application/zip", "audio/mpeg"];
  for (const mediaType of types) {
    const kind = kindOfBlob(mediaType, "a");
    expect([mediaType, opensInPanel({ blobId: "b", size: 1, sha256: "", mediaType })]).toEqual([mediaType, !["file", "image", "svg"].includes(kind)]);
  }
});
