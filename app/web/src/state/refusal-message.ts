// Messages for people about a chat that the server refuses to show.

import { m } from "../i18n/messages.ts";

const ELSEWHERE = m.you_dont_have_access_to_this_chat_sign_in();
const CUT = m.you_no_longer_have_access_to_this_chat();
const REFUSED: Readonly<Record<string, string>> = {
  thread_not_found: m.this_chat_doesnt_exist_or_was_deleted(),
  forbidden: ELSEWHERE,
  unauthorized: ELSEWHERE,
  protocol: m.this_page_is_out_of_date_reload_it_to(),
};

/** `hadAccess`: the chat was open before, or a share link led here. */
export function refusalMessage(code: string, message: string, hadAccess: boolean): string {
  if (code === "forbidden" && hadAccess) return CUT;
  return REFUSED[code] ?? (message || m.this_chat_is_closed());
}
