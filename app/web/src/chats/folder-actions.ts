// What a person does with a folder. The server has the account's folders; those of other chats are only names at the chats.

import { ApiError, isRequestError, request } from "@khala/client";
import { tick } from "svelte";

import { focusMessage } from "../dialogs/focus.ts";
import { errorMessage } from "../state/error-messages.ts";
import { page } from "../state/page.svelte.ts";
import { chatMenu } from "./chat-menu-state.svelte.ts";
import { m } from "../i18n/messages.ts";

/** A folder of the account, with its settings. */
export type FolderSettings = { readonly name: string; readonly threads: number; readonly agent?: string; readonly instructions?: string };
export type FolderChanges = { name?: string; agent?: string | null; instructions?: string | null };

/** Open a new chat that is in this folder. */
export function startChatIn(name: string): void {
  chatMenu.showsArchived = false;
  page.chats.add(false, name);
  void tick().then(focusMessage);
}

/** The folder of the account; one without settings if the server has none of this name. Errors as those of `request`. */
export async function readFolder(name: string): Promise<FolderSettings> {
  if (!mayBeOnServer(name)) await page.chats.loadFolders();
  const found = mayBeOnServer(name) ? await unlessMissing(request<FolderSettings>("GET", pathOf(name))) : null;
  return found ?? { name, threads: 0 };
}

/** Change the settings of a folder of the account. Errors as those of `request`. */
export async function changeFolder(name: string, changes: FolderChanges): Promise<FolderSettings> {
  const changed = await request<FolderSettings>("PATCH", pathOf(name), { body: changes });
  await page.chats.loadFolders();
  return changed;
}

/** Give the folder another name. Errors as those of `request`. */
export async function renameFolder(name: string, fresh: string): Promise<void> {
  if (mayBeOnServer(name)) await unlessMissing(request("PATCH", pathOf(name), { body: { name: fresh } }));
  await refileBrowserChats(name, fresh);
  await page.chats.loadFolders();
}

/** Delete the folder if the person confirms it. Its chats stay. */
export async function deleteFolder(name: string): Promise<void> {
  if (!(await page.confirm({ title: m.delete_folder_name({ name }), text: m.chats_of_the_folder_stay(), yes: m.delete_action() }))) return;
  try {
    if (mayBeOnServer(name)) await request("DELETE", pathOf(name));
    await refileBrowserChats(name, null);
  } catch (error) {
    if (!isRequestError(error)) throw error;
    page.toast(`${m.couldnt_delete_the_folder()} ${errorMessage(error)}`);
  }
  await page.chats.loadFolders();
}

/** Move the chats of the folder that are on no list of the account. */
async function refileBrowserChats(name: string, folder: string | null): Promise<void> {
  for (const { id, entry, folder: before } of page.chats.items) {
    if (entry === null && before === name) await page.chats.organise(id, { folder });
  }
}

/** Whether the server has the folder, as far as this page knows; true while it does not know. */
function mayBeOnServer(name: string): boolean {
  return page.account.user !== null && (page.chats.folders?.some((folder) => folder.name === name) ?? true);
}

/** The answer; null if the server has no such folder. */
async function unlessMissing<Answer>(asked: Promise<Answer>): Promise<Answer | null> {
  try {
    return await asked;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

function pathOf(name: string): string {
  return `/api/me/folder?name=${encodeURIComponent(name)}`;
}
