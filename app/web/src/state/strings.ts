// Texts of the page that more than one folder shows.

import { m } from "../i18n/messages.ts";

export const NEW_CHAT = m.new_chat();
export const RUN_ACTIVE = m.wait_for_the_answer_to_finish_or_stop_it();
export const UNREACHABLE = m.cant_reach_the_server_check_your_connection();
export const IMAGE_FAILED = m.couldnt_show_this_image();
export const UNTITLED_FILE = m.untitled_file();
export const COPY_LABELS = { ready: m.copy(), copied: m.copied(), failed: m.couldnt_copy() } as const;
