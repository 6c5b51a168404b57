// Entry point of the page: loads the messages of one language, then the page.

import { applyAppearance } from "./state/appearance.ts";
import { loadMessages } from "./i18n/load-messages.ts";

applyAppearance();
await loadMessages();
await import("./start.ts");
