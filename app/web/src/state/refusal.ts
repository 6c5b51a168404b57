// What the person is told where the server will not let them follow a chat.

const ELSEWHERE = "This chat belongs to somebody else, or its key is in another browser.";
const CUT = "You no longer have access to this chat.";
const REFUSED: Readonly<Record<string, string>> = {
  thread_not_found: "There is no such chat on the server, or not any more.",
  forbidden: ELSEWHERE,
  unauthorized: ELSEWHERE,
  protocol: "This page is older than the server. Please reload it.",
};

/** `hadAccess`: it was open, or a link led here. */
export function refusalWords(code: string, message: string, hadAccess: boolean): string {
  if (code === "forbidden" && hadAccess) return CUT;
  return REFUSED[code] ?? (message || "This chat is closed.");
}
