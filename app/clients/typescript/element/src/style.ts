// The style of the element. Pages change it with the CSS variables of `:host`, and with `::part()`.

export const STYLE = `
:host {
  --khala-font: system-ui, sans-serif;
  --khala-background: Canvas;
  --khala-text: CanvasText;
  --khala-muted: color-mix(in srgb, var(--khala-text) 65%, var(--khala-background));
  --khala-line: color-mix(in srgb, var(--khala-text) 18%, var(--khala-background));
  --khala-edge: color-mix(in srgb, var(--khala-text) 50%, var(--khala-background));
  --khala-accent: #3457d5;
  --khala-accent-text: #fff;
  --khala-link: color-mix(in srgb, var(--khala-accent) 60%, var(--khala-text));
  --khala-bubble: color-mix(in srgb, var(--khala-text) 8%, var(--khala-background));
  --khala-code: color-mix(in srgb, var(--khala-bubble) 50%, var(--khala-background));
  --khala-radius: 12px;
  --khala-size: 1rem;
  display: block; block-size: 32rem; color-scheme: light dark;
  color: var(--khala-text); background: var(--khala-background); font: var(--khala-size)/1.5 var(--khala-font);
}
:host([hidden]), [hidden] { display: none !important; }
.chat { display: flex; flex-direction: column; block-size: 100%; }
.messages { flex: 1; overflow-y: auto; scrollbar-width: thin; padding: 1rem max(1rem, calc((100% - 46rem) / 2)); display: flex; flex-direction: column; gap: .75rem; overscroll-behavior: contain; }
.message { max-inline-size: 100%; overflow-wrap: anywhere; }
.message.assistant { align-self: stretch; min-inline-size: 0; }
.message.user { align-self: flex-end; max-inline-size: 85%; padding: .5rem .875rem; background: var(--khala-bubble); border-radius: var(--khala-radius); }
.text { margin: 0; white-space: pre-wrap; }
.markdown > div > :first-child { margin-block-start: 0; }
.markdown > div > :last-child { margin-block-end: .75rem; }
.markdown pre { overflow-x: auto; padding: .75rem .875rem; background: var(--khala-code); border: 1px solid var(--khala-line); border-radius: 10px; tab-size: 4; }
.markdown code, .call code { font: .875em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.markdown :not(pre) > code { padding: .1em .35em; background: var(--khala-bubble); border-radius: 5px; }
.markdown img { max-inline-size: 100%; block-size: auto; }
.markdown :is(h1, h2, h3, h4, h5, h6) { margin-block: 1rem .5rem; font-size: 1em; font-weight: 600; line-height: 1.35; text-wrap: balance; }
.markdown > div:not(:first-child) > :is(h1, h2, h3, h4, h5, h6) { margin-block-start: 1.25rem; }
.markdown > div > :is(h1, h2, h3, h4, h5, h6) { margin-block-end: .5rem; }
.markdown h1 { font-size: 1.375em; }
.markdown h2 { font-size: 1.1875em; }
.markdown h3 { font-size: 1.0625em; }
.markdown :is(ul, ol) { margin-block: .375rem; padding-inline-start: 1.5rem; }
.markdown li + li { margin-block-start: .3rem; }
.markdown li::marker { color: var(--khala-muted); }
.markdown :is(pre, code) { direction: ltr; unicode-bidi: isolate; text-align: left; }
.markdown table { display: block; inline-size: fit-content; max-inline-size: 100%; overflow-x: auto; border: 1px solid var(--khala-line); border-radius: 10px; border-spacing: 0; font-size: .9375em; font-variant-numeric: tabular-nums; }
.markdown th { font-weight: 600; background: var(--khala-code); color: var(--khala-muted); white-space: nowrap; }
.markdown th, .markdown td { overflow-wrap: normal; text-align: start; vertical-align: top; padding: .375rem .75rem; }
.markdown td { border-block-start: 1px solid var(--khala-line); }
.markdown [align=right] { text-align: end; }
.markdown [align=center] { text-align: center; }
.markdown blockquote { margin-inline: 0; padding-inline-start: .875rem; border-inline-start: 3px solid var(--khala-line); color: var(--khala-muted); }
.markdown blockquote > :first-child { margin-block-start: 0; }
.markdown blockquote > :last-child { margin-block-end: 0; }
a { color: var(--khala-link); text-underline-offset: .15em; }
small { color: var(--khala-muted); }
.note:empty { display: none; }
.markdown li:has(> input) { list-style: none; margin-inline-start: -1.5rem; }
.markdown hr { margin-block: 1rem; border: 0; border-block-start: 1px solid var(--khala-line); }
.call { display: flex; flex-wrap: wrap; gap: .25rem .5rem; align-items: baseline; padding: .625rem .75rem; margin-block: .5rem; border: 1px solid var(--khala-line); border-radius: 8px; }
.call small { flex: 1 1 10rem; min-inline-size: 0; white-space: pre-wrap; overflow-wrap: anywhere; max-block-size: 16rem; overflow: auto; }
.call code { font-weight: 600; }
.call[data-state=completed] code::before { content: "✓ "; }
.call:is([data-state=failed], [data-state=cancelled]) code::before { content: "✕ "; }
.call[data-state=blocked] :is(code, small) { flex: 1 0 100%; }
.decision { flex: 1 0 100%; display: flex; gap: .5rem; align-items: center; justify-content: flex-end; flex-wrap: wrap; margin-block-start: .25rem; white-space: nowrap; }
.decision > span { margin-inline-end: auto; }
.decision .button { flex: none; padding-inline: .625rem; }
.note .button { min-block-size: 2rem; margin-block-start: .25rem; padding-inline: .625rem; }
.status { margin: 0; padding: .25rem 1rem .5rem; color: var(--khala-muted); font-size: .875em; text-align: center; }
.chat[data-status=refused] .status, .chat:not(:has(.messages)) .status { display: grid; gap: .75rem; justify-items: center; margin: auto; padding: 1rem; font-size: 1em; }
.chat[data-status=refused] .messages:empty { display: none; }
.form { display: flex; gap: .25rem; align-items: end; margin: 0 max(.75rem, calc((100% - 47rem) / 2)) .75rem; padding: .3125rem; border: 1px solid var(--khala-edge); border-radius: calc(var(--khala-radius) * 1.5); }
.form:focus-within { border-color: var(--khala-link); box-shadow: 0 0 0 1px var(--khala-link); }
.input { box-sizing: border-box; flex: 1; min-inline-size: 0; max-block-size: 10rem; resize: none; padding: .375rem .625rem; font: inherit; color: inherit; background: transparent; border: 0; }
.input::placeholder { color: var(--khala-muted); opacity: 1; }
.button { min-block-size: 2.25rem; padding-inline: .875rem; font: inherit; font-size: .9375em; color: inherit; background: transparent; border: 1px solid var(--khala-line); border-radius: var(--khala-radius); cursor: pointer; }
.button.primary { color: var(--khala-accent-text); background: var(--khala-accent); border-color: transparent; }
.button:hover:enabled { border-color: var(--khala-edge); }
.button.primary:hover:enabled { background: color-mix(in srgb, var(--khala-accent) 88%, var(--khala-text)); }
.button:disabled { opacity: .4; cursor: default; }
:is(.send, .stop) { display: grid; flex: none; place-items: center; inline-size: 2.25rem; block-size: 2.25rem; padding: 0; }
svg { inline-size: 1.25rem; block-size: 1.25rem; fill: none; stroke: currentColor; stroke-width: 2; stroke-linecap: round; stroke-linejoin: round; }
.stop svg { fill: currentColor; stroke-width: 1; }
:focus-visible { outline: 2px solid var(--khala-link); outline-offset: 2px; }
.messages:focus-visible { outline-offset: -2px; }
.input:focus-visible { outline: none; }
@media (forced-colors: active) { .form:focus-within { outline: 2px solid Highlight; } }
@media (pointer: coarse) {
  .button { min-block-size: 2.75rem; }
  :is(.send, .stop) { inline-size: 2.75rem; block-size: 2.75rem; }
  .input { padding-block: .625rem; }
}
@media (prefers-reduced-motion: no-preference) {
  .message[data-status=writing] .note { animation: khala-pulse 1.2s ease-in-out infinite alternate; }
  @keyframes khala-pulse { to { opacity: .4; } }
}
`;
