// Drives the page in a frame as a person does: clicks, types and chooses files.

const MAX_FRAMES = 100;

export class PageDriver {
  /** Wait for an element that fits the selector and, if given, has this text. Throws if it does not come within `frames`. */
  async find(selector: string, text?: string, frames = MAX_FRAMES): Promise<HTMLElement> {
    for (let frame = 0; frame < frames; frame++) {
      const found = [...document.querySelectorAll<HTMLElement>(selector)].find((one) => text === undefined || one.textContent.trim() === text);
      if (found) return found;
      await nextFrame();
    }
    throw new Error(`Nothing fits ${selector} ${text ?? ""}`);
  }

  async press(selector: string, text?: string): Promise<void> {
    const found = await this.find(selector, text);
    found.click();
    await nextFrame();
  }

  /** Replace the text of a field. */
  async type(selector: string, text: string): Promise<void> {
    const field = await this.find(selector);
    if (!(field instanceof HTMLInputElement || field instanceof HTMLTextAreaElement)) throw new Error(`${selector} is no field.`);
    field.value = text;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    await nextFrame();
  }

  /** Choose files with these names. */
  async attach(selector: string, names: readonly string[]): Promise<void> {
    const field = await this.find(selector);
    if (!(field instanceof HTMLInputElement)) throw new Error(`${selector} is no field.`);
    const chosen = new DataTransfer();
    for (const name of names) chosen.items.add(new File(["content"], name));
    field.files = chosen.files;
    field.dispatchEvent(new Event("change", { bubbles: true }));
    await nextFrame();
  }
}

export function nextFrame(): Promise<void> {
  return new Promise((resolve) => requestAnimationFrame(() => resolve()));
}
