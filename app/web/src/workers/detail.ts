// The detail worker: reads, parses and keeps what cards show beyond their calls, away from the page's own thread.

import { DetailService } from "../tasks/detail-service.ts";
import type { ToDetail } from "./detail.messages.ts";

const detailing = new DetailService((message) => postMessage(message));

addEventListener("message", (event: MessageEvent<ToDetail>) => detailing.receive(event.data));
