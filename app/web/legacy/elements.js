// Elements of the page, made by hand: whatever text goes into them is only ever text.

/** An element with properties and children; a text child is only ever text. */
export function make(tag, properties = {}, ...children) {
  const { data = {}, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  Object.assign(element.dataset, data);
  element.append(...children);
  return element;
}

/** A picture of one line, 20 by 20. */
export function drawing(path) {
  const [picture, line] = ["svg", "path"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  picture.setAttribute("viewBox", "0 0 20 20");
  picture.setAttribute("aria-hidden", "true");
  line.setAttribute("d", path);
  picture.append(line);
  return picture;
}

/** Make the children of `parent` show `items`, reusing those of the same kind. */
export function sync(parent, items, kindOf, create, update) {
  items.forEach((item, index) => {
    let child = parent.children[index];
    if (child?.dataset.kind !== kindOf(item)) {
      const fresh = create(item);
      fresh.dataset.kind = kindOf(item);
      if (child) child.replaceWith(fresh);
      else parent.append(fresh);
      child = fresh;
    }
    update(child, item);
  });
  while (parent.children.length > items.length) parent.lastElementChild.remove();
}

/** Text that grew is appended to; only other text is replaced. */
export function setText(element, text) {
  const node = element.firstChild ?? element.appendChild(document.createTextNode(""));
  if (text === node.data) return;
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

/** A button that copies what `text()` says. */
export function copyButton(text) {
  const button = make("button", { type: "button", className: "quiet copy", textContent: "Copy", hidden: !navigator.clipboard });
  button.addEventListener("click", async () => {
    const copied = await navigator.clipboard.writeText(text()).then(() => true, () => false);
    button.textContent = copied ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

/** "840 ms", "1.2 s" */
export function milliseconds(value) {
  return value < 1000 ? `${value} ms` : `${(value / 1000).toFixed(1)} s`;
}

/** "$0.012" */
export function cost(usd) {
  return usd === 0 ? "$0" : `$${usd >= 0.01 ? usd.toFixed(2) : usd.toPrecision(2)}`;
}

/** "840 bytes", "1.2 MB" */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} ${bytes === 1 ? "byte" : "bytes"}`;
  const [unit, per] = bytes < 1e6 ? ["kB", 1e3] : bytes < 1e9 ? ["MB", 1e6] : ["GB", 1e9];
  return `${(bytes / per).toFixed(1)} ${unit}`;
}

/** A value as JSON to be read and edited by people. */
export function pretty(value) {
  return seen(JSON.stringify(value, null, 2));
}

/** JSON in which what would show as nothing, or turn the text around, is escaped: who approves of a call has to see it. */
export function seen(json) {
  return json.replace(UNSEEN, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

const UNSEEN = /[\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
