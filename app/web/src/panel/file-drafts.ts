// Texts of files that were edited and not saved, by chat and path. They are kept until the page is left.

export type FileDraft = { readonly before: string; readonly text: string };

const drafts = new Map<string, FileDraft>();

export function loadFileDraft(chatId: string, path: string): FileDraft | null {
  return drafts.get(`${chatId} ${path}`) ?? null;
}

export function saveFileDraft(chatId: string, path: string, draft: FileDraft | null): void {
  if (draft) drafts.set(`${chatId} ${path}`, draft);
  else drafts.delete(`${chatId} ${path}`);
}
