// The detail worker: reads, parses and keeps what cards show beyond their calls, away from the page's own thread.

import { Detailing } from "../tasks/detailing.ts";
import type { ToDetail } from "./detail.messages.ts";

const detailing = new Detailing((told) => postMessage(told));

addEventListener("message", (event: MessageEvent<ToDetail>) => detailing.hear(event.data));
