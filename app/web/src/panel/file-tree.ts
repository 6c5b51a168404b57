// A tree of paths as rows: folders before their files, each level in the order of its names.

export type TreeEntry<T> = { readonly path: string; readonly name: string; readonly depth: number; readonly item: T | null };

type Folder<T> = { folders: Map<string, Folder<T>>; files: Map<string, T> };

const MAX_DEPTH = 16;

/** The rows of the tree; `item` is null for folders. Folders deeper than 16 levels are shown in one. */
export function treeOf<T extends { name: string }>(items: readonly T[]): TreeEntry<T>[] {
  const root: Folder<T> = { folders: new Map(), files: new Map() };
  for (const item of items) {
    const parts = item.name.split("/").filter(Boolean);
    const folders = parts.slice(0, Math.min(parts.length - 1, MAX_DEPTH));
    let at = root;
    for (const name of folders) {
      const inner = at.folders.get(name) ?? { folders: new Map(), files: new Map() };
      at.folders.set(name, inner);
      at = inner;
    }
    at.files.set(parts.slice(folders.length).join("/"), item);
  }
  return rowsOf(root, "", 0);
}

function rowsOf<T>({ folders, files }: Folder<T>, under: string, depth: number): TreeEntry<T>[] {
  const byName = <V>(one: [string, V], other: [string, V]) => one[0].localeCompare(other[0]);
  const inner = [...folders].toSorted(byName).flatMap(([name, folder]) => {
    const path = `${under}${name}/`;
    return [{ path, name, depth, item: null }, ...rowsOf(folder, path, depth + 1)];
  });
  return [...inner, ...[...files].toSorted(byName).map(([name, item]) => ({ path: `${under}${name}`, name, depth, item }))];
}
