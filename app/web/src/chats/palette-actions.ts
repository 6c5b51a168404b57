// The actions of the palette.

import { tick } from "svelte";

import { CLOCK } from "../conversation/icons.ts";
import { focusMessage } from "../dialogs/focus.ts";
import { helpShortcut } from "../dialogs/help-shortcut.svelte.ts";
import { panelState } from "../plans/panel-state.svelte.ts";
import { sidePanel } from "../panel/side-panel.svelte.ts";
import { setAppearance, theme, THEME_STORAGE_KEY, THEMES } from "../state/appearance.ts";
import type { Theme } from "../state/appearance.ts";
import { page } from "../state/page.svelte.ts";
import type { PageModel } from "../state/page-model.ts";
import { openSettings } from "../state/settings-view.svelte.ts";
import { THEME_LABELS } from "../state/theme-labels.ts";
import { ENTER, KEYBOARD, PERSON, SUN_AND_MOON } from "../style/dialog-icons.ts";
import { ARCHIVE, BOOKMARK, CHECKLIST, COMPOSE, FOLDER, HOURGLASS, MAGNIFIER, PANEL, ROBOT, SHARE, SLIDERS } from "../style/icons.ts";
import { act } from "./chat-actions.ts";
import { chatMenu, itemOf } from "./chat-menu-state.svelte.ts";
import { chatActions, type ChatAction } from "./chat-menu.ts";
import { ACTION_ICONS, ACTION_LABELS } from "./action-labels.ts";
import type { PaletteItem } from "./palette-items.ts";
import { HELP_KEYS, LIST_KEYS, NEW_CHAT_KEYS, SETTINGS_KEYS } from "./shortcut-keys.ts";
import { searchState } from "./search-state.svelte.ts";
import { m } from "../i18n/messages.ts";

/** What the palette needs of the page: whether a wide window shows the chat without the list, and what shows or hides the list, closes it where it is a sheet, and shows the shortcuts. */
export type PaletteContext = { isAlone: boolean; onlist: () => void; onleave: () => void; onhelp: () => void };

/** All actions that are possible now: those of the page, then those of the open chat. */
export function paletteActions({ isAlone, onlist, onhelp }: PaletteContext): PaletteItem[] {
  const open = (dialog: PageModel["dialog"]) => () => void (page.dialog = dialog);
  const { chat, account } = page;
  const isOwner = chat?.refusal === null && chat.role === "owner" && chat.thread !== null;
  return [
    { id: "new", label: m.new_chat(), icon: COMPOSE, shortcut: NEW_CHAT_KEYS, run: () => add() },
    { id: "temporary", label: m.new_temporary_chat(), icon: HOURGLASS, run: () => add(true) },
    { id: "search", label: m.search_messages(), icon: MAGNIFIER, run: searchMessages },
    { id: "settings", label: m.settings(), icon: SLIDERS, shortcut: SETTINGS_KEYS, run: () => openSettings(page) },
    { id: "gallery", label: m.agents(), icon: ROBOT, run: open("gallery") },
    { id: "schedules", label: m.schedules(), icon: CLOCK, run: open("schedules") },
    { id: "new-folder", label: m.new_folder(), icon: FOLDER, run: () => chatMenu.askNewFolder() },
    { id: "memories", label: m.memories(), icon: BOOKMARK, run: () => openSettings(page, "memory") },
    ...(chat?.mayWrite ? [{ id: "plans", label: m.plans(), icon: CHECKLIST, run: () => panelState.open() }] : []),
    ...(chat?.thread && chat.refusal === null ? [{ id: "files", label: m.files(), icon: FOLDER, run: () => sidePanel.open(chat.id) }] : []),
    ...(isOwner ? [{ id: "share", label: m.share_chat(), icon: SHARE, run: open("share") }] : []),
    account.user === null ? { id: "signin", label: m.sign_in(), icon: ENTER, run: open("signin") } : { id: "account", label: m.your_account(), icon: PERSON, run: () => openSettings(page, "account") },
    { id: "help", label: m.keyboard_shortcuts(), icon: KEYBOARD, ...(helpShortcut.isOn && { shortcut: HELP_KEYS }), run: onhelp },
    { id: "archived", label: m.archived(), icon: ARCHIVE, run: () => showArchive(isAlone, onlist) },
    ...ofList(isAlone, onlist),
    ...themes(),
    ...ofOpenChat(),
  ];
}

/** The archived chats are in the list, which is shown for them. */
function showArchive(isAlone: boolean, onlist: () => void): void {
  chatMenu.showsArchived = true;
  if (isAlone || isSheet()) onlist();
}

/** Whether the list is a sheet over the chat, which is closed once something of the palette is chosen. */
function isSheet(): boolean {
  return matchMedia("(max-width: 859px)").matches;
}

/** A sheet over the chat is opened by its button alone. */
function ofList(isAlone: boolean, onlist: () => void): PaletteItem[] {
  if (isSheet()) return [];
  return [{ id: "list", label: isAlone ? m.show_chat_list() : m.hide_chat_list(), icon: PANEL, shortcut: LIST_KEYS, run: onlist }];
}

/** The themes that are not in use. */
function themes(): PaletteItem[] {
  const others = THEMES.filter((one) => one !== theme());
  return others.map((one) => ({ id: `theme ${one}`, label: m.use_theme({ theme: THEME_LABELS[one] }), icon: SUN_AND_MOON, run: () => choose(one) }));
}

function choose(one: Theme): void {
  if (!setAppearance(THEME_STORAGE_KEY, one)) page.toast(m.language_not_stored());
}

function ofOpenChat(): PaletteItem[] {
  const { chat } = page;
  if (chat?.refusal !== null) return [];
  const item = itemOf(chat);
  const isListed = page.chats.items.some(({ id }) => id === chat.id);
  const actions = chatActions(item, { isListed, isOpen: true, hasQuestions: chat.hasQuestions, isStored: page.chats.isStored(chat.id) }).flat();
  return actions.map((action: ChatAction) => ({ id: action, label: ACTION_LABELS[action], icon: ACTION_ICONS[action], detail: m.this_chat(), run: () => void act(action, item, false) }));
}

function add(isTemporary = false): void {
  page.chats.add(isTemporary);
  void tick().then(focusMessage);
}

function searchMessages(): void {
  searchState.begin(false);
  page.dialog = "search";
}
