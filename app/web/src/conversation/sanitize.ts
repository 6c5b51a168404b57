// Sanitises the HTML of answers by an allow-list: no scripts, loads, forms, or styles that imitate the page.

import DOMPurify from "dompurify";
import type { Config } from "dompurify";

import { safeUrl } from "./markdown.ts";

const TEXT: Config = {
  ALLOWED_TAGS: [
    ...["p", "br", "hr", "h2", "h3", "h4", "h5", "h6", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li"],
    ...["table", "thead", "tbody", "tr", "th", "td", "a", "span", "div", "sub", "sup", "kbd", "details", "summary"],
  ],
  ALLOWED_ATTR: ["href", "title", "target", "rel", "class", "align", "start", "tabindex", "role", "aria-label", "open"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  // Attributes that hold no URL are not matched against the pattern for URLs.
  ADD_URI_SAFE_ATTR: ["align", "start", "open", "tabindex", "target", "rel", "role", "aria-label"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
};
const FORMULA: Config = {
  USE_PROFILES: { mathMl: true },
  FORBID_TAGS: ["annotation", "annotation-xml", "maction", "mglyph", "style", "svg"],
  FORBID_ATTR: ["style", "href", "xlink:href", "src", "id", "name"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};
const CLASSES = /^(?:code|code-bar|language|table|long|math|display|box|checked|alert|alert-title|note|tip|important|warning|caution|footnote|footnote-label|footnote-reference|hljs-[\w-]+|[a-z]+_)$/;

/** Blocks of text; each has the direction of its own first letter. Lists and tables have that of the whole text. */
const BLOCKS = new Set(["P", "H2", "H3", "H4", "H5", "H6", "BLOCKQUOTE", "LI", "TH", "TD"]);

/** An own DOMPurify instance, so that no other code's hooks apply. */
const purifier = DOMPurify(window);
purifier.addHook("afterSanitizeAttributes", (node) => {
  const classes = [...node.classList].filter((name) => CLASSES.test(name));
  if (node.hasAttribute("class")) node.setAttribute("class", classes.join(" "));
  if (node.nodeName === "A") secureLink(node);
  if (isLeadOfQuote(node)) node.removeAttribute("dir");
  else if (BLOCKS.has(node.nodeName)) node.setAttribute("dir", "auto");
});

/** A quote has the direction of its first block, so that its line is where that begins: a direction of a block's own would hide its text from the quote. */
function isLeadOfQuote(node: Element): boolean {
  return node.parentElement?.nodeName === "BLOCKQUOTE" && node.previousElementSibling === null;
}

/** Links open in another tab, without referrer or opener. */
function secureLink(link: Element): void {
  if (!safeUrl(link.getAttribute("href") ?? "")) link.removeAttribute("href");
  link.setAttribute("target", "_blank");
  link.setAttribute("rel", "noopener noreferrer nofollow");
}

/** A `<summary>` is a button, so links in it become their text. */
export function sanitizeHtml(html: string): DocumentFragment {
  const fragment = purifier.sanitize(html, { ...TEXT, RETURN_DOM_FRAGMENT: true });
  for (const link of fragment.querySelectorAll("summary :is(a, [role=link])")) link.replaceWith(...link.childNodes);
  return fragment;
}

/** The MathML of a formula; all other markup is removed. */
export function sanitizeFormula(html: string): DocumentFragment {
  return purifier.sanitize(html.replace(/<annotation[^>]*>[^<]*<\/annotation>/g, ""), { ...FORMULA, RETURN_DOM_FRAGMENT: true });
}
