// Files in messages: images are shown, whatever else there is can be downloaded.

import { tried } from "./dialogs.js";
import { drawing, make, size } from "./elements.js";

export const PAPER = "M6 3h5l4 4v10H6zM11 3v4h4";
const AHEAD = "400px";
const loads = new WeakMap();
const sight = new IntersectionObserver((entries) => entries.forEach(load), { rootMargin: AHEAD, scrollMargin: AHEAD });

function load({ isIntersecting, target }) {
  if (!isIntersecting) return;
  sight.unobserve(target);
  loads.get(target)();
}

/** A file as a chip that downloads it, and above that the image if it is one. */
export function fileView(blob, blobs) {
  const name = blob.name ?? "File";
  const words = [make("span", { className: "file-name", textContent: name }), make("span", { className: "file-size", textContent: size(blob.size) })];
  const chip = make("button", { type: "button", className: "file-chip", title: `Download ${name}` }, drawing(PAPER), ...words);
  const wrong = make("p", { className: "wrong", role: "alert" });
  const element = make("div", { className: "file" }, ...(blob.mediaType.startsWith("image/") ? [pictureOf(blob, blobs)] : []), chip, wrong);
  chip.onclick = () => tried(element, () => blobs.download(blob));
  return element;
}

/** The image of a blob, asked for once it is about to be seen: the keys travel in headers, so an address won't do. */
export function pictureOf(blob, blobs) {
  const image = make("img", { alt: blob.name ?? "Image", hidden: true });
  const frame = make("div", { className: "picture" }, image);
  const fail = () => frame.replaceChildren(make("span", { textContent: "The image could not be shown." }));
  loads.set(frame, async () => {
    const found = await blobs.quietly(blob.blobId);
    if (!found) return fail();
    image.onload = () => (URL.revokeObjectURL(image.src), (image.hidden = false));
    image.onerror = () => (URL.revokeObjectURL(image.src), fail());
    image.src = URL.createObjectURL(found);
    return undefined;
  });
  sight.observe(frame);
  return frame;
}
