// The detail worker: loads, parses and caches the details of tool call cards, off the page's main thread.

import { DetailService } from "../tasks/detail-service.ts";
import type { ToDetail } from "./detail.messages.ts";

const detailing = new DetailService((message) => postMessage(message));

addEventListener("message", (event: MessageEvent<ToDetail>) => detailing.receive(event.data));
