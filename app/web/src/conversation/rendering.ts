// What Markdown is drawn with, in one part of its own, so that the page is there before it.

export { Drawing, press } from "./drawing.ts";
export { Reader } from "./pieces.ts";
