// Checks that every text of the page is a message, and that the messages of all languages agree.
//
// `node messages-check.js` prints what is wrong and fails. Sources without texts for people are excluded by `EXCLUDED`.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { parse } from "svelte/compiler";
import ts from "typescript";

import { LOCALES, messagesPath, placeholders } from "./messages.js";

const SOURCES = join(import.meta.dirname, "src");
/** Tests; workers, whose texts are for developers; examples for the choice of an agent; the operator's console, which is in English. */
const EXCLUDED = /\.test\.ts$|\.bench\.ts$|\.d\.ts$|(^|\/)testing|^(agent|session|workers|console|i18n)\/|^sw\.ts$/;
/** Attributes that people see or hear. A component's properties of these names are shown as well. */
const SHOWN = new Set(["title", "alt", "placeholder", "label", "none", "detail", "text", "kind", "aria-label", "aria-description", "aria-valuetext", "aria-roledescription"]);
/** Elements whose text is the same in all languages. */
const CODE = new Set(["code", "kbd", "pre"]);
/** Names that are not translated, and literals that are no texts: key names, media queries, selectors, markup, styles, diagrams, fonts, paths of icons. */
const NAMES = new Set(["Khala", "Khala:", "Edge", "Opera", "Firefox", "Chrome", "Safari", "Android", "Windows", "Linux", "DeepSeek", "Escape", "Enter", "Files"]);
const NO_TEXT = /^(Arrow|Key)[A-Z]|^(Alt|Meta|Control)\+|Error$|^\(.*\)$|^(min|max)-width|^[#.[]|<\w|\w="|^M[\d.]+|sans-serif|\/$|^noopener|^hint count$|^Mac OS$|^Noto Sans|mermaid\.|^picture diagram$|^\s*(?:flowchart LR$|classDef )|--- t|^const LOOK|[{;] [\w-]+:|^quiet |^read write|^(running tools|waiting for approval)$/;
/** Calls and constructors whose arguments nobody reads but developers, browsers and servers. */
const INTERNAL = /^console\.|(querySelector(All)?|closest|matches|includes|startsWith|endsWith|addEventListener|setRequestHeader|getResponseHeader)$|Error$|^(DOMException|MediaQuery|Worker|RegExp|URL)$/;

const problems = [];

/** Whether a literal reads like a text: several words, or one that begins with a capital. */
function isText(literal) {
  const text = literal.trim();
  return !NAMES.has(text) && !NO_TEXT.test(literal) && (/\p{L}{2,}\P{L}*\s+\P{L}*\p{L}/u.test(text) || /^\p{Lu}\p{Ll}+/u.test(text));
}

function report(file, text) {
  problems.push(`src/${file}: “${text.replaceAll(/\s+/g, " ").trim().slice(0, 80)}” is no message: see docs/web.md.`);
}

/** Whether the literal is what a function returns, or what a condition of the markup shows. */
function isResult({ parent }) {
  return ts.isReturnStatement(parent) || ts.isConditionalExpression(parent);
}

/** Report the literals of TypeScript that read like texts; with `isShown`, also single words that are returned or chosen. */
function checkScript(file, code, isShown = file.endsWith("labels.ts")) {
  const visit = (node) => {
    if (ts.isImportDeclaration(node) || ts.isTypeNode(node) || ts.isTypeAliasDeclaration(node)) return;
    if ((ts.isCallExpression(node) || ts.isNewExpression(node)) && INTERNAL.test(node.expression.getText())) return;
    if (ts.isBinaryExpression(node) && /^[!=]==?$/.test(node.operatorToken.getText())) return;
    if (ts.isCaseClause(node)) return node.statements.forEach(visit);
    if (ts.isPropertyAssignment(node)) return visit(node.initializer);
    if (ts.isStringLiteralLike(node) && (isText(node.text) || (isShown && !NAMES.has(node.text) && /\p{L}{2,}/u.test(node.text) && isResult(node)))) report(file, node.text);
    if (ts.isTemplateExpression(node) && [node.head.text, ...node.templateSpans.map(({ literal }) => literal.text)].some(isText)) report(file, node.getText());
    ts.forEachChild(node, visit);
  };
  visit(ts.createSourceFile(file, code, ts.ScriptTarget.Latest, true));
}

/** Report the texts of a component's markup, and the literals of its script and expressions. */
function checkComponent(file, source) {
  const { fragment, instance, module } = parse(source, { modern: true });
  for (const script of [instance, module]) if (script) checkScript(file, source.slice(script.content.start, script.content.end));
  const visit = (node) => {
    if (node === null || typeof node !== "object") return;
    if (Array.isArray(node)) return node.forEach(visit);
    if (CODE.has(node.name)) return;
    if (node.type === "Text" && /\p{L}{2,}/u.test(node.data) && !NAMES.has(node.data.trim())) report(file, node.data);
    if (node.type === "ExpressionTag") return checkScript(file, source.slice(node.expression.start, node.expression.end), true);
    if (node.type === "Attribute") return checkAttribute(file, source, node);
    for (const key of ["nodes", "fragment", "consequent", "alternate", "body", "pending", "then", "catch", "fallback", "attributes"]) visit(node[key]);
  };
  visit(fragment);
}

function checkAttribute(file, source, { name, value }) {
  for (const part of value === true ? [] : [value].flat()) {
    if (part.type === "ExpressionTag") checkScript(file, `(${source.slice(part.expression.start, part.expression.end)})`);
    else if (SHOWN.has(name) && /\p{L}{2,}/u.test(part.data)) report(file, `${name}=${part.data}`);
  }
}

/** Report messages that are missing, unused, empty, or of other placeholders or forms than the language needs. */
function checkMessages(sources) {
  const catalogs = Object.fromEntries(LOCALES.map((locale) => [locale, JSON.parse(readFileSync(messagesPath(locale), "utf8"))]));
  const [base] = LOCALES;
  const used = new Set(sources.flatMap((source) => [...source.matchAll(/\bm\.(\w+)/g)].map(([, key]) => key)));
  for (const key of Object.keys(catalogs[base])) if (!used.has(key)) problems.push(`messages/${base}.json: nothing uses “${key}”.`);
  for (const [locale, catalog] of Object.entries(catalogs)) {
    for (const key of Object.keys(catalog)) if (!(key in catalogs[base])) problems.push(`messages/${locale}.json: “${key}” is not in ${base}.json.`);
    for (const [key, message] of Object.entries(catalogs[base])) for (const problem of problemsOf(locale, message, catalog[key])) problems.push(`messages/${locale}.json: “${key}” ${problem}.`);
  }
}

/** What is wrong with a translation of a message. */
export function problemsOf(locale, message, translation) {
  if (translation === undefined) return ["is missing"];
  if (typeof message !== typeof translation) return [`must ${typeof message === "string" ? "not " : ""}have plural forms`];
  const texts = typeof translation === "string" ? { text: translation } : translation;
  const found = Object.entries(texts).filter(([, text]) => !text.trim()).map(([form]) => `is empty (${form})`);
  const names = placeholders(message).join(", ");
  if (placeholders(translation).join(", ") !== names) found.push(`must have the placeholders ${names || "of none"}`);
  if (typeof translation === "string") return found;
  const forms = new Intl.PluralRules(locale).resolvedOptions().pluralCategories.toSorted().join(", ");
  if (Object.keys(texts).toSorted().join(", ") !== forms) found.push(`must have the forms ${forms}`);
  return found;
}

if (process.argv[1] === import.meta.filename) {
  const files = readdirSync(SOURCES, { recursive: true }).filter((file) => /\.(ts|svelte)$/.test(file)).toSorted();
  const sources = files.map((file) => [file, readFileSync(join(SOURCES, file), "utf8")]);
  for (const [file, source] of sources.filter(([file]) => !EXCLUDED.test(file))) (file.endsWith(".svelte") ? checkComponent : checkScript)(file, source);
  checkMessages(sources.map(([, source]) => source));
  for (const problem of problems) console.error(problem);
  process.exit(problems.length > 0 ? 1 : 0);
}
