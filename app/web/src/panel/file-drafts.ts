// Texts of files that were edited and not saved, by chat and path. They are kept until the page is left, which the browser asks about.

export type FileDraft = { readonly before: string; readonly text: string };

const drafts = new Map<string, FileDraft>();

export function loadFileDraft(chatId: string, path: string): FileDraft | null {
  return drafts.get(`${chatId} ${path}`) ?? null;
}

export function saveFileDraft(chatId: string, path: string, draft: FileDraft | null): void {
  if (draft) drafts.set(`${chatId} ${path}`, draft);
  else drafts.delete(`${chatId} ${path}`);
  // Only while there are drafts: browsers keep a page with this listener less readily for the way back.
  if (drafts.size > 0) addEventListener("beforeunload", askFirst);
  else removeEventListener("beforeunload", askFirst);
}

/** The browser asks before the page is left. */
function askFirst(event: BeforeUnloadEvent): void {
  event.preventDefault();
}
