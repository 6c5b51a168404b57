// What can be told of a blob without reading it.

import type { BlobRef } from "../khala/frames.ts";

/** Whether a blob can be looked into as lines. */
export function isText({ mediaType, preview }: BlobRef): boolean {
  return Boolean(preview) || /^text\/|json/.test(mediaType);
}

/** What a blob is called as a file. */
export function fileName({ blobId, name, mediaType }: BlobRef): string {
  return name ?? `${blobId}${mediaType.includes("json") ? ".json" : mediaType.startsWith("text/") ? ".txt" : ""}`;
}
