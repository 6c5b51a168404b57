// The ways to look at a version of a file: as it is meant to look, as text, and compared with the version before it.

import type { ItemKind } from "./item-kinds.ts";

export type ItemViewName = "preview" | "code" | "changes";

/** Kinds that have no text to show. */
const BINARY: readonly ItemKind[] = ["image", "pdf", "file"];

export function isBinary(kind: ItemKind): boolean {
  return BINARY.includes(kind);
}

/** The views of a file that has this many versions. */
export function viewsOf(kind: ItemKind, versionCount: number): readonly ItemViewName[] {
  if (isBinary(kind)) return ["preview"];
  return [...(kind === "code" ? [] : (["preview"] as const)), "code", ...(versionCount > 1 ? (["changes"] as const) : [])];
}

/** The view to show: the picked one, if this version has it. The first version has no changes. */
export function shownView(picked: ItemViewName, views: readonly ItemViewName[], index: number): ItemViewName {
  const isThere = views.includes(picked) && !(picked === "changes" && index === 0);
  return isThere ? picked : (views[0] ?? "preview");
}
