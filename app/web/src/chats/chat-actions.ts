// What a person does with a chat of the list. Failures are shown in a toast.

import { downloadBlob, isRequestError } from "@khala/client";
import { errorMessage } from "../state/error-messages.ts";
import { page } from "../state/page.svelte.ts";
import type { ChatListItem, ChatListing } from "../state/page-model.ts";
import { serverFeatures } from "../state/server-features.ts";
import { saveBytes } from "../tasks/save-file.ts";
import { chatMenu } from "./chat-menu-state.svelte.ts";
import { exportName, type ChatAction } from "./chat-menu.ts";
import { chatTitle } from "./chat-rows.ts";
import { deletionConfirmation, RESET_CONFIRMATION } from "./confirmations.ts";
import { removeFromIndex } from "./search-index.svelte.ts";
import { m } from "../i18n/messages.ts";

/** Carry out an action of the menu. `inList`: a new name is typed in the chat's row. */
export async function act(action: ChatAction, chat: ChatListItem, inList: boolean): Promise<void> {
  switch (action) {
    case "rename":
      if (inList) chatMenu.editingId = chat.id;
      else chatMenu.ask("rename", chat);
      return;
    case "folder":
      return chatMenu.ask("folder", chat);
    case "chatSettings":
      page.dialog = "chat-settings";
      return;
    case "pin":
    case "unpin":
      await page.chats.organise(chat.id, { pinned: action === "pin" });
      return;
    case "archive":
    case "unarchive":
      return archive(chat, action === "archive");
    case "markdown":
    case "json":
      return attempt(async () => saveBytes(exportName(chatTitle(chat), action), await exported(chat, action)));
    case "print":
      return attempt(() => print(chat));
    case "reset":
      return reset(chat);
    case "delete":
    case "leave":
      return remove(chat);
  }
}

async function archive(chat: ChatListItem, archived: boolean): Promise<void> {
  const change = (listing: ChatListing): Promise<boolean> => page.chats.organise(chat.id, listing);
  if (!(await change({ archived }))) return;
  page.toast(archived ? m.chat_archived() : m.chat_unarchived(), { label: m.undo(), act: () => void change({ archived: !archived }) });
}

async function remove(chat: ChatListItem): Promise<void> {
  const isTemporary = page.chat?.id === chat.id && page.chat.isTemporary;
  const undoSeconds = isTemporary ? 0 : (await serverFeatures()).undoSeconds;
  const question = deletionConfirmation(chat, undoSeconds);
  if (question !== null && !(await page.confirm(question))) return;
  await page.chats.remove(chat.id, undoSeconds);
  removeFromIndex(chat.id);
}

async function reset({ id }: ChatListItem): Promise<void> {
  const { chat } = page;
  if (chat?.id !== id || !(await page.confirm(RESET_CONFIRMATION))) return;
  await chat.reset();
}

function exported({ id }: ChatListItem, format: "markdown" | "json"): Promise<Blob> {
  return downloadBlob(`/api/threads/${id}/export?format=${format}`, { keys: page.chats.keysOf(id) });
}

/** Open the browser's dialog to print the whole conversation, or to save it as a PDF. */
async function print(chat: ChatListItem): Promise<void> {
  const text = await (await exported(chat, "markdown")).text();
  const { printText } = await import("./print-text.ts");
  await printText(text);
}

async function attempt(act: () => Promise<void>): Promise<void> {
  try {
    await act();
  } catch (error) {
    if (!isRequestError(error)) throw error;
    page.toast(`${m.couldnt_export_chat()} ${errorMessage(error)}`);
  }
}
