// Messages for people about a chat that the server refuses to show.

const ELSEWHERE = "You don’t have access to this chat. Sign in, or open it in the browser where you started it.";
const CUT = "You no longer have access to this chat.";
const REFUSED: Readonly<Record<string, string>> = {
  thread_not_found: "This chat doesn’t exist or was deleted.",
  forbidden: ELSEWHERE,
  unauthorized: ELSEWHERE,
  protocol: "This page is out of date. Reload it to continue.",
};

/** `hadAccess`: the chat was open before, or a share link led here. */
export function refusalMessage(code: string, message: string, hadAccess: boolean): string {
  if (code === "forbidden" && hadAccess) return CUT;
  return REFUSED[code] ?? (message || "This chat is closed.");
}
