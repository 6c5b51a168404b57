// Views of the operators' console, with its style: the page of the other frames does not have it.

import style from "../src/console/console.css?inline";
import type { View } from "./state.ts";

/** The view with the console's style, which comes after that of the page. A part of a page gets the box that views have. */
export function inConsole(view: View): View {
  return {
    isWhole: view.isWhole,
    show(target) {
      const sheet = new CSSStyleSheet();
      sheet.replaceSync(style);
      document.adoptedStyleSheets.push(sheet);
      view.show(view.isWhole ? target : target.appendChild(boxOfView()));
    },
  };
}

function boxOfView(): HTMLElement {
  const box = document.createElement("div");
  box.className = "view";
  box.style.padding = "0";
  return box;
}
