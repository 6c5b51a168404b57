// Entry point of the page: loads the messages of one language, then the page.

import { loadMessages } from "./i18n/load-messages.ts";

await loadMessages();
await import("./start.ts");
