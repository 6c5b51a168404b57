// Texts of the page that more than one folder shows.

export const NEW_CHAT = "New chat";
export const RUN_ACTIVE = "Wait for the answer to finish, or stop it.";
export const UNREACHABLE = "Can’t reach the server. Check your connection.";
export const IMAGE_FAILED = "Couldn’t show this image.";
export const UNTITLED_FILE = "Untitled file";
export const COPY_LABELS = { ready: "Copy", copied: "Copied", failed: "Couldn’t copy" } as const;
