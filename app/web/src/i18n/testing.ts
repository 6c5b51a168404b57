// Gives unit tests the English messages.

import en from "virtual:messages/en";
import { setMessages } from "./messages.ts";

setMessages(en, "en");
