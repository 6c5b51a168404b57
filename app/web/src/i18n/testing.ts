// Gives unit tests the English messages.

import * as en from "../../catalogs/compiled/messages/en.js";
import { setMessages } from "./messages.ts";

setMessages(en);
