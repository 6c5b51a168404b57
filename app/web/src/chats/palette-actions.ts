// The actions of the palette.

import { tick } from "svelte";

import { focusMessage } from "../dialogs/focus.ts";
import { panelState } from "../plans/panel-state.svelte.ts";
import { sidePanel } from "../panel/side-panel.svelte.ts";
import { setAppearance, theme, THEME_STORAGE_KEY, THEMES } from "../state/appearance.ts";
import type { Theme } from "../state/appearance.ts";
import { page } from "../state/page.svelte.ts";
import type { PageModel } from "../state/page-model.ts";
import { THEME_LABELS } from "../state/theme-labels.ts";
import { act } from "./chat-actions.ts";
import { chatMenu, itemOf } from "./chat-menu-state.svelte.ts";
import { chatActions, type ChatAction } from "./chat-menu.ts";
import { ACTION_LABELS } from "./action-labels.ts";
import type { PaletteItem } from "./palette-items.ts";
import { searchState } from "./search-state.svelte.ts";
import { m } from "../i18n/messages.ts";

/** All actions that are possible now: those of the page, then those of the open chat. */
export function paletteActions(onhelp: () => void): PaletteItem[] {
  const open = (dialog: PageModel["dialog"]) => () => void (page.dialog = dialog);
  const { chat, account } = page;
  const isOwner = chat?.refusal === null && chat.role === "owner" && chat.thread !== null;
  return [
    { id: "new", label: m.new_chat(), run: add },
    { id: "search", label: m.search_messages(), run: searchMessages },
    { id: "settings", label: m.settings(), run: open("settings") },
    { id: "gallery", label: m.agents(), run: open("gallery") },
    { id: "memories", label: m.memories(), run: open("memories") },
    ...(chat?.mayWrite ? [{ id: "plans", label: m.plans(), run: () => panelState.open() }] : []),
    ...(chat?.thread && chat.refusal === null ? [{ id: "files", label: m.files(), run: () => sidePanel.open(chat.id) }] : []),
    ...(isOwner ? [{ id: "share", label: m.share_chat(), run: open("share") }] : []),
    account.user === null ? { id: "signin", label: m.sign_in(), run: open("signin") } : { id: "account", label: m.your_account(), run: open("account") },
    { id: "help", label: m.keyboard_shortcuts(), run: onhelp },
    { id: "archived", label: m.archived(), run: () => void (chatMenu.showsArchived = true) },
    ...themes(),
    ...ofOpenChat(),
  ];
}

/** The themes that are not in use. */
function themes(): PaletteItem[] {
  const others = THEMES.filter((one) => one !== theme());
  return others.map((one) => ({ id: `theme ${one}`, label: m.use_theme({ theme: THEME_LABELS[one] }), run: () => choose(one) }));
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
  return actions.map((action: ChatAction) => ({ id: action, label: ACTION_LABELS[action], detail: m.this_chat(), run: () => void act(action, item, false) }));
}

function add(): void {
  page.chats.add();
  void tick().then(focusMessage);
}

function searchMessages(): void {
  searchState.inChat = false;
  page.dialog = "search";
}
