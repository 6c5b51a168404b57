// HTML of answers, freed of everything that could run, load, ask or look like the page: an allow-list, not a search for evil.

import DOMPurify from "dompurify";
import type { Config } from "dompurify";

import { safe } from "./markdown.ts";

const TEXT: Config = {
  ALLOWED_TAGS: [
    ...["p", "br", "hr", "h2", "h3", "h4", "h5", "h6", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li"],
    ...["table", "thead", "tbody", "tr", "th", "td", "a", "span", "div", "sub", "sup", "kbd"],
  ],
  ALLOWED_ATTR: ["href", "title", "target", "rel", "class", "align", "start", "tabindex", "role", "aria-label"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  // What is no address isn't held against the pattern for addresses.
  ADD_URI_SAFE_ATTR: ["align", "start", "tabindex", "target", "rel", "role", "aria-label"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
};
const FORMULA: Config = {
  USE_PROFILES: { mathMl: true },
  FORBID_TAGS: ["annotation", "annotation-xml", "maction", "mglyph", "style", "svg"],
  FORBID_ATTR: ["style", "href", "xlink:href", "src", "id", "name"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};
const CLASSES = /^(?:code|code-bar|language|table|math|display|box|checked|hljs-[\w-]+|[a-z]+_)$/;

/** The page has its own cleaner, so that nobody else's hooks apply. */
const cleaner = DOMPurify(window);
cleaner.addHook("afterSanitizeAttributes", (node) => {
  const classes = [...node.classList].filter((name) => CLASSES.test(name));
  if (node.hasAttribute("class")) node.setAttribute("class", classes.join(" "));
  if (node.nodeName === "A") confine(node);
});

/** A link leaves the page in another tab, which hears nothing of where it comes from. */
function confine(link: Element): void {
  if (!safe(link.getAttribute("href") ?? "")) link.removeAttribute("href");
  link.setAttribute("target", "_blank");
  link.setAttribute("rel", "noopener noreferrer nofollow");
}

export function clean(html: string): DocumentFragment {
  return cleaner.sanitize(html, { ...TEXT, RETURN_DOM_FRAGMENT: true });
}

/** MathML, and nothing else. */
export function cleanFormula(html: string): DocumentFragment {
  return cleaner.sanitize(html.replace(/<annotation[^>]*>[^<]*<\/annotation>/g, ""), { ...FORMULA, RETURN_DOM_FRAGMENT: true });
}
