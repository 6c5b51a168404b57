// The parts of the page about schedules, each loaded with its messages when it is first shown.

import { withMessages } from "../i18n/later-messages.ts";

export const dialogs = {
  schedules: () => withMessages(() => import("./SchedulesDialog.svelte")),
  "send-later": () => withMessages(() => import("./SendLaterDialog.svelte")),
} as const;

export const sendLaterMenu = () => withMessages(() => import("./SendLaterMenu.svelte"));

export const waitingList = () => withMessages(() => import("./WaitingList.svelte"));
