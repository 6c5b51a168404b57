// The import of chats, loaded with its messages when it is first shown.

import { withMessages } from "../i18n/later-messages.ts";

export const importChatsForm = () => withMessages(() => import("./ImportChats.svelte"));
