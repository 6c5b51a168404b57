// The Markdown renderer as one lazily loaded bundle, so that the page appears before it is loaded.

export { MarkdownView, handleCodeButton } from "./markdown-view.ts";
export { followFootnote } from "./footnotes.ts";
export { IncrementalParser } from "./incremental-markdown.ts";
export { TextReveal } from "./text-reveal.ts";
