// The style of the element. Pages change it with the CSS variables of `:host`, and with `::part()`.

export const STYLE = `
:host {
  --khala-font: system-ui, sans-serif;
  --khala-background: Canvas;
  --khala-text: CanvasText;
  --khala-muted: color-mix(in srgb, var(--khala-text) 65%, var(--khala-background));
  --khala-line: color-mix(in srgb, var(--khala-text) 18%, var(--khala-background));
  --khala-accent: #3457d5;
  --khala-accent-text: #fff;
  --khala-link: color-mix(in srgb, var(--khala-accent) 60%, var(--khala-text));
  --khala-bubble: color-mix(in srgb, var(--khala-text) 8%, var(--khala-background));
  --khala-radius: 12px;
  --khala-size: 1rem;
  display: block; block-size: 32rem; color-scheme: light dark;
  color: var(--khala-text); background: var(--khala-background); font: var(--khala-size)/1.5 var(--khala-font);
}
:host([hidden]), [hidden] { display: none !important; }
.chat { display: flex; flex-direction: column; block-size: 100%; }
.messages { flex: 1; overflow-y: auto; padding: 1rem; display: flex; flex-direction: column; gap: .75rem; overscroll-behavior: contain; }
.message { max-inline-size: 100%; overflow-wrap: anywhere; }
.message.user { align-self: flex-end; max-inline-size: 85%; padding: .5rem .875rem; background: var(--khala-bubble); border-radius: var(--khala-radius); }
.text { margin: 0; white-space: pre-wrap; }
.markdown > div > :first-child { margin-block-start: 0; }
.markdown > div > :last-child { margin-block-end: .75rem; }
.markdown pre { overflow-x: auto; padding: .75rem; background: var(--khala-bubble); border-radius: 8px; }
.markdown code, .call code { font: .875em ui-monospace, monospace; }
.markdown img { max-inline-size: 100%; block-size: auto; }
.markdown :is(h1, h2, h3, h4, h5, h6) { margin-block: 1rem .5rem; font-size: 1.0625em; line-height: 1.35; }
.markdown h1 { font-size: 1.25em; }
.markdown h2 { font-size: 1.125em; }
.markdown :is(ul, ol) { padding-inline-start: 1.5rem; }
.markdown :is(pre, code) { direction: ltr; unicode-bidi: isolate; text-align: left; }
.markdown table { display: block; overflow-x: auto; border-collapse: collapse; }
.markdown th, .markdown td { overflow-wrap: normal; text-align: start; border: 1px solid var(--khala-line); padding: .25rem .5rem; }
.markdown blockquote { margin-inline: 0; padding-inline-start: .75rem; border-inline-start: 3px solid var(--khala-line); }
a { color: var(--khala-link); text-underline-offset: .15em; }
small { color: var(--khala-muted); }
.note:empty { display: none; }
.call { display: flex; flex-wrap: wrap; gap: .5rem; align-items: baseline; padding: .5rem .75rem; margin-block: .5rem; border: 1px solid var(--khala-line); border-radius: 8px; }
.call small { white-space: pre-wrap; overflow-wrap: anywhere; max-block-size: 16rem; overflow: auto; }
.call[data-state=failed] code, .call[data-state=cancelled] code { text-decoration: line-through; }
.decision { display: inline-flex; gap: .5rem; align-items: baseline; flex-wrap: wrap; }
.status { margin: 0; padding: .25rem 1rem; color: var(--khala-muted); }
.form { display: flex; gap: .5rem; align-items: end; padding: .75rem 1rem; border-block-start: 1px solid var(--khala-line); }
.input { flex: 1; min-inline-size: 0; max-block-size: 10rem; resize: none; padding: .5rem .75rem; font: inherit; color: inherit; background: transparent; border: 1px solid var(--khala-line); border-radius: var(--khala-radius); }
.button { min-block-size: 2.5rem; padding-inline: .875rem; font: inherit; color: inherit; background: transparent; border: 1px solid var(--khala-line); border-radius: var(--khala-radius); cursor: pointer; }
.button.primary { color: var(--khala-accent-text); background: var(--khala-accent); border-color: transparent; }
.button:disabled { opacity: .5; cursor: default; }
:focus-visible { outline: 2px solid var(--khala-link); outline-offset: 2px; }
`;
