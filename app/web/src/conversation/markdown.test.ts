// @vitest-environment jsdom
import { describe, expect, it } from "vitest";

import { sanitizeHtml } from "./sanitize.ts";
import { tokenize, renderTokens } from "./markdown.ts";

function html(text: string): string {
  const box = document.createElement("div");
  box.append(sanitizeHtml(renderTokens(tokenize(text))));
  return box.innerHTML.replaceAll(' dir="auto"', ""); // each block has it
}

it("gives each block the direction of its own text", () => {
  const box = document.createElement("div");
  box.append(sanitizeHtml(renderTokens(tokenize("نص\n\n- بند\n- item\n\n> اقتباس\n\n| أ |\n|---|\n| b |\n\n## عنوان"))));
  const blocks = ["p", "li", "blockquote", "th", "td", "h3"].map((name) => [name, box.querySelector(name)?.getAttribute("dir")]);
  expect(blocks).toEqual(blocks.map(([name]) => [name, "auto"]));
  expect([box.querySelector("ul"), box.querySelector("table")].map((block) => block?.hasAttribute("dir"))).toEqual([false, false]); // that of the text
  expect(box.querySelector("blockquote > p")?.hasAttribute("dir")).toBe(false); // the quote has that of its first block
});

function shown(text: string): string {
  const box = document.createElement("div");
  box.append(sanitizeHtml(renderTokens(tokenize(text))));
  return box.textContent;
}

describe("Markdown", () => {
  it("is paragraphs, breaks, strong text, emphasis, deleted text and code", () => {
    expect(html("a **b** *c* ~~d~~ `e`\nf\n\ng")).toBe("<p>a <strong>b</strong> <em>c</em> <del>d</del> <code>e</code><br>f</p>\n<p>g</p>");
  });

  it("leaves the first level of headings to the page", () => {
    expect(html("# One\n\n###### Six")).toBe("<h2>One</h2><h6>Six</h6>");
  });

  it("opens links elsewhere, without telling where they come from", () => {
    expect(html('[a](https://example.com/?x=1&y=2 "T")')).toBe(
      '<p><a href="https://example.com/?x=1&amp;y=2" title="T" target="_blank" rel="noopener noreferrer nofollow">a</a></p>',
    );
    expect(html("https://example.com me@example.com")).toContain('href="https://example.com"');
    expect(html("https://example.com me@example.com")).toContain('href="mailto:me@example.com"');
  });

  it.each(["[a](/api/me)", "[a](#b)", "[a](//evil.example)", "[a](ftp://b)", "[a](data:text/html,b)", "[a](blob:b)"])("makes no link of %s", (text) => {
    expect(html(text)).toBe("<p>a</p>");
  });

  it("shows an image as a link, and within a link as its words", () => {
    expect(html("![a cat](https://example.com/cat.png)")).toContain('<a href="https://example.com/cat.png"');
    expect(html("![a cat](https://example.com/cat.png)")).toContain(">a cat</a>");
    expect(html("[![a cat](https://a.example/cat.png)](https://b.example)").match(/<a /g)).toHaveLength(1);
    expect(html("![a cat](data:image/png;base64,xx)")).toBe("<p>a cat</p>");
  });

  it("has boxes for tasks that are told, not only drawn", () => {
    expect(html("- [x] done\n- [ ] open")).toContain('<span class="box checked" role="img" aria-label="Done"></span>');
    expect(html("- [x] done\n- [ ] open")).not.toContain("<input");
  });

  it("has tables in a box of their own that can be reached and scrolled", () => {
    const table = html("| a | b |\n|---|--:|\n| 1 | 2 |");
    expect(table).toContain('<div class="table" tabindex="0" role="group" aria-label="Table"><table>');
    expect(table).toContain('<td align="right">2</td>');
  });

  it("shows HTML as text, except what only breaks and shifts", () => {
    expect(shown("a <b>c</b> <div>\n\n<div class='x'>y</div>")).toContain("a <b>c</b> <div>");
    expect(html("x<sup>2</sup> a<br>b <kbd>K</kbd>")).toBe("<p>x<sup>2</sup> a<br>b <kbd>K</kbd></p>");
  });

  it.each(["word1 word2 word3", "a < b && c > d", "5 * 3 * 2", "snake_case_name", "C:\\Users\\x", "a ' \" `", "ünï 🎈"])("keeps %j as it is", (text) => {
    expect(shown(text)).toBe(text);
  });
});

describe("Markdown that is nested without end", () => {
  it.each([
    ["quotations", ">", 4000],
    ["lists", "- ", 1500],
    ["brackets", "[", 20_000],
    ["emphasis", "*a _b ", 3000],
    ["links", "[a](", 3000],
  ])("is shown all the same: %s", (_, text, times) => {
    expect(shown(`${text.repeat(times)}x`)).toContain("x");
  }, 20_000);
});

const PAYLOADS = [
  "<script>alert(1)</script>",
  "<img src=x onerror=alert(1)>",
  "<svg onload=alert(1)>",
  "<svg><script>alert(1)</script></svg>",
  "<svg><a xlink:href='javascript:alert(1)'><text>x</text></a></svg>",
  "<svg><animate onbegin=alert(1) attributeName=x></svg>",
  "<svg><use href='data:image/svg+xml,<svg id=x onload=alert(1)>#x'></svg>",
  "<math><mtext></mtext><mglyph><style><img src=x onerror=alert(1)></style></mglyph></math>",
  "<math><mi xlink:href='javascript:alert(1)'>x</mi></math>",
  "<math><annotation-xml encoding='text/html'><img src=x onerror=alert(1)></annotation-xml></math>",
  "<form><math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
  "<iframe src='javascript:alert(1)'></iframe>",
  "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
  "<object data='javascript:alert(1)'></object>",
  "<embed src='javascript:alert(1)'>",
  "<form action='javascript:alert(1)'><button>x</button></form>",
  "<button formaction='javascript:alert(1)' form=x>x</button>",
  "<input autofocus onfocus=alert(1)>",
  "<details open ontoggle=alert(1)>",
  "<video><source onerror=alert(1)></video>",
  "<audio src=x onerror=alert(1)>",
  "<body onload=alert(1)>",
  "<style>@import 'https://evil.example/x.css'; * { background: url(https://evil.example) }</style>",
  "<link rel=stylesheet href='https://evil.example/x.css'>",
  "<meta http-equiv=refresh content='0;url=javascript:alert(1)'>",
  "<base href='https://evil.example/'>",
  "<p style='position:fixed;inset:0;background:red'>x</p>",
  "<a href='javascript:alert(1)'>x</a>",
  "<marquee onstart=alert(1)>x</marquee>",
  "<template><script>alert(1)</script></template>",
  "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
  "<x onclick=alert(1) id=composer name=body>x</x>",
  "<select><style></select><img src=x onerror=alert(1)></style>",
  "<!--><img src=x onerror=alert(1)>-->",
  "<![CDATA[<img src=x onerror=alert(1)>]]>",
  "[x](javascript:alert(1))",
  "[x](JaVaScRiPt:alert(1))",
  "[x](java\tscript:alert(1))",
  "[x](&#106;avascript:alert(1))",
  "[x](  javascript:alert(1))",
  "[x](\u0001javascript:alert(1))",
  "[x](vbscript:msgbox(1))",
  "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
  "[x](https://a.example/\"onmouseover=alert(1))",
  "[x](https://a.example 'y\" onmouseover=\"alert(1)')",
  "<javascript:alert(1)>",
  "![x](javascript:alert(1))",
  "![x](https://a.example/x.png\"onerror=\"alert(1))",
  "![\"onerror=\"alert(1)](https://a.example/x.png)",
  "[x]: javascript:alert(1)\n\n[x]",
  "```\"><img src=x onerror=alert(1)>\ncode\n```",
  "```html\n</code></pre><img src=x onerror=alert(1)>\n```",
  "`</code><img src=x onerror=alert(1)>`",
  "| <img src=x onerror=alert(1)> |\n|---|\n| <script>alert(1)</script> |",
  "# <img src=x onerror=alert(1)>",
  "- [x] <img src=x onerror=alert(1)>",
  "$<img src=x onerror=alert(1)>$",
  "$$\n</span><img src=x onerror=alert(1)>\n$$",
  "\\[<script>alert(1)</script>\\]",
  "<br onclick=alert(1)>",
  "<sup/onmouseover=alert(1)>x</sup>",
];
const TAGS = "script, style, iframe, object, embed, form, input, button, textarea, select, svg, math, img, video, audio, source, link, meta, base, template, noscript, body";

/** What in these nodes could run, load, ask or look like the page. */
function harm(box: Element): string[] {
  const found = [...box.querySelectorAll(TAGS)].map((element) => element.nodeName);
  for (const element of box.querySelectorAll("*")) {
    for (const { name, value } of element.attributes) {
      if (/^(?:on|style$|src|srcdoc$|id$|name$|action$|formaction$|xlink|data)/i.test(name)) found.push(name);
      if (name === "href" && !/^(?:https?:|mailto:)/.test(value)) found.push(value);
      if (name === "class" && !/^(?:code|code-bar|language|table|box|checked|math|display| )+$/.test(value)) found.push(value);
    }
  }
  return found;
}

describe("what a model says", () => {
  it.each(PAYLOADS)("can't run, load or ask anything by %j", (payload) => {
    const box = document.createElement("div");
    for (const text of [payload, `Some words ${payload} and more`, `> ${payload}`, `- ${payload}`, `a\n\n${payload}\n\nb`]) {
      box.append(sanitizeHtml(renderTokens(tokenize(text))));
    }
    expect(harm(box)).toEqual([]);
  });

  it.each(PAYLOADS)("is cleaned by itself, too, whatever the Markdown was: %j", (payload) => {
    const box = document.createElement("div");
    box.append(sanitizeHtml(payload));
    expect(harm(box)).toEqual([]);
  });

  it.each(["<kbd>", "<code>", "<pre>"])("is no HTML behind %s either", (tag) => {
    expect(html(`${tag}<div/class=code-bar>&lt;<sub/title=x>`)).not.toMatch(/<div|<sub/);
  });

  it("is found harmful by these tests where it is", () => {
    const box = document.createElement("div");
    box.innerHTML = "<img src=x><a href='javascript:x'></a><p style='x' onclick='x'></p>";
    expect(harm(box)).toHaveLength(5);
  });
});
