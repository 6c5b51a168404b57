// The labels and icons of the actions on a chat.

import { BIN, DOWNLOAD, PIN, PRINTER, TURN_BACK } from "../style/dialog-icons.ts";
import { ARCHIVE, CROSS, FOLDER, PENCIL, SLIDERS } from "../style/icons.ts";
import type { ChatAction } from "./chat-menu.ts";
import { m } from "../i18n/messages.ts";

export const ACTION_LABELS: Readonly<Record<ChatAction, string>> = {
  rename: m.rename_ellipsis(),
  pin: m.pin(),
  unpin: m.unpin(),
  folder: m.move_to_folder(),
  archive: m.archive_action(),
  unarchive: m.unarchive(),
  chatSettings: m.chat_settings_ellipsis(),
  markdown: m.export_as_markdown(),
  json: m.export_as_json(),
  print: m.print_or_save_as_pdf(),
  reset: m.reset_ellipsis(),
  delete: m.delete_action(),
  leave: m.remove_from_list(),
};

export const ACTION_ICONS: Readonly<Record<ChatAction, string>> = {
  rename: PENCIL,
  pin: PIN,
  unpin: PIN,
  folder: FOLDER,
  archive: ARCHIVE,
  unarchive: ARCHIVE,
  chatSettings: SLIDERS,
  markdown: DOWNLOAD,
  json: DOWNLOAD,
  print: PRINTER,
  reset: TURN_BACK,
  delete: BIN,
  leave: CROSS,
};
