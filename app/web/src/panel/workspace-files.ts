// The files of the workspace, as the server lists them.

export type WorkspaceFile = { readonly name: string; readonly size: number };
export type WorkspacePage = { items: { path: string; size: number }[]; nextCursor?: string };

export function workspacePath(chatId: string, cursor: string): string {
  return `/api/threads/${chatId}/workspace${cursor === "" ? "" : `?cursor=${encodeURIComponent(cursor)}`}`;
}

/** Whether all folders around a row of the tree are open. The path of a folder ends with a slash. */
export function isInOpenFolder(path: string, open: ReadonlySet<string>): boolean {
  const end = path.replace(/\/$/, "");
  for (let at = end.indexOf("/"); at !== -1; at = end.indexOf("/", at + 1)) if (!open.has(end.slice(0, at + 1))) return false;
  return true;
}
