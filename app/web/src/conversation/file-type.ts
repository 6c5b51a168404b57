// What kind of file it is, in a few letters.

import { formatBytes, joinParts } from "../state/format.ts";

/** "PDF · 1.2 MB": the end of the name or, without one, of the media type, if it is short, and the size. */
export function fileFacts(name: string, mediaType: string, size: number): string {
  const [, end = /\/(\w{2,4})(?:;|$)/.exec(mediaType)?.[1]] = /\.([a-z]\w{0,4})$/i.exec(name) ?? [];
  return joinParts([end?.toUpperCase(), formatBytes(size)]);
}
